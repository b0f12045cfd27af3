"""`scripts/faults --hostile` names each promise that is broken, and attacks no other machine."""

from __future__ import annotations

import pytest
import typer
from hostile_bodies import BOMBS, LARGE, made
from hostile_run import hostile

from card_gateway.app import Gateway


@pytest.mark.parametrize(
    "url", ["http://192.0.2.1:9000", "example.org", "http://[2001:db8::1]:9000"]
)
def test_an_attack_when_the_address_is_another_machine_is_refused(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        hostile(url=url)
    assert ended.value.exit_code == 2
    assert "must be on loopback" in capsys.readouterr().out


@pytest.mark.parametrize("name", [*LARGE, *BOMBS])
def test_a_body_when_made_is_as_large_as_the_gateway_takes_and_no_larger(name: str) -> None:
    path, body = made(name)
    assert path.startswith("/")
    assert len(body) <= Gateway.body_bytes
    if name in LARGE:
        assert len(body) > Gateway.body_bytes - 100

"""`scripts/faults --hostile` names each promise that is broken, and attacks no other machine."""

from __future__ import annotations

import pytest
import typer
from hostile_run import hostile


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

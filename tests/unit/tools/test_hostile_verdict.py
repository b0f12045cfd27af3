"""`scripts/faults --hostile` names each promise that is broken, and attacks no other machine."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import typer
from honest_streams import Seen
from hostile_bodies import BOMBS, LARGE, made
from hostile_kinds import KINDS
from hostile_run import hostile
from hostile_verdict import Found, Span

from card_gateway.app import Gateway

KIND = replace(KINDS[0], allowed=frozenset({"200"}))
HARMLESS, HOSTILE = Span(0.0, 10.0), Span(10.0, 20.0)


def kept() -> tuple[Found, Seen]:
    """A kind beside which others met nothing."""
    held = [{"gateway": 100.0}, {"gateway": 140.0}, {"gateway": 141.0}]
    found = Found(KIND, Counter({"200": 9, "unanswered": 1}), [HARMLESS], [HOSTILE], [HOSTILE])
    found.held, found.series, found.peak_mib = [*held], [50, 58, 58], 150.0
    seconds = [second + 0.5 for second in range(20)]
    seen = Seen(tokens=[(at_s, 10.0) for at_s in seconds], gaps=[(at_s, 0.1) for at_s in seconds])
    seen.healths = [(at_s, 0.1) for at_s in seconds]
    return found, seen


@pytest.mark.parametrize(
    ("spoilt", "named"),
    [
        ({}, None),
        ({"tokens": [(5.0, 100.0), (15.0, 79.0)]}, "honest tokens/s fell to 0.79"),
        ({"tokens": [(5.0, 100.0), (15.0, 81.0)]}, None),
        ({"healths": [(15.0, 1.1)]}, "/health: 1.1 s"),
        ({"healths": [(5.0, 1.1)]}, None),
        ({"guides": [(15.0, 11.0)]}, "a new guide: 11.0 s"),
        ({"wrong": [(15.0, "a text was lost")]}, "a text was lost"),
        ({"held": [{"card": 100.0}, {"card": 100.0}, {"card": 140.0}]}, "card +40"),
        ({"peak_mib": 400.0}, "memory rose by 300 MiB"),
        ({"series": [50, 50, 90]}, "40 new metric series"),
        ({"answers": Counter({"200": 1, "500": 2})}, "must not be: 500 2"),
    ],
)
def test_a_verdict_when_one_promise_is_broken_names_it_alone(
    spoilt: dict[str, Any], named: str | None
) -> None:
    found, seen = kept()
    for name, value in spoilt.items():
        setattr(found if hasattr(found, name) else seen, name, value)
    broken = found.broken(seen)
    assert len(broken) == (named is not None)
    assert named is None or named in broken[0]


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

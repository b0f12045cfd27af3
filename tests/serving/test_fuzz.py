"""Hostile inputs at every boundary, for a short while; `scripts/fuzz` goes on for as long as told.

How many inputs were tried is printed at the end of each test (`pytest -s`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fuzz_boundaries import BOUNDARIES
from fuzz_wire import EVERY_MODEL, WireFuzz
from running_doors import running_guard
from running_service import RunningService

SEED = 20
REQUESTS = 100
EXAMPLES = {"pool files": 30}
"""Of boundaries where one input takes long; 100 of the others."""


@pytest.fixture(scope="module")
def wire(server: RunningService) -> Iterator[WireFuzz]:
    with running_guard(server, *EVERY_MODEL) as guard:
        wire = WireFuzz(server, guard)
        yield wire
        wire.close()


@pytest.mark.parametrize("way", ["over_grpc", "through_guard", "over_http"])
def test_every_request_is_answered_or_refused_and_nothing_dies(wire: WireFuzz, way: str) -> None:
    tried = getattr(wire, way)(SEED, REQUESTS)
    print(f"{tried} requests {way}; {wire.answered} answered and {wire.refused} refused so far")
    assert tried >= REQUESTS


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_every_input_is_taken_or_refused(boundary: str) -> None:
    examples = EXAMPLES.get(boundary, 100)
    tried = BOUNDARIES[boundary](SEED, examples)
    print(f"{tried} {boundary}")
    assert tried >= examples

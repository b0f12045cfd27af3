"""Every pair of choices that the registries allow together writes the text of the target alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest
from fake_engine import FakeEngine, FakeModel
from one_process import OneProcess, autoregressive, request_of, settings_of

from card.sampling import SamplingParameters
from card.speculation.control import CONTROLLERS
from card.speculation.drafters import DRAFTERS
from card.speculation.drafters.growth import GROWTHS
from card.speculation.pacing import PACINGS
from card.speculation.sources import SHAPES, WITHOUT_DRAFT

ON_AN_ENGINE = [name for name, drafter in DRAFTERS.items() if drafter.model != "tensorrt_llm"]
AXES: dict[str, Sequence[str]] = {
    "drafter": [*ON_AN_ENGINE, *WITHOUT_DRAFT],
    "growth": list(GROWTHS),
    "decoding": list(PACINGS),
    "proposals": list(WITHOUT_DRAFT),
    "query": list(SHAPES),
    "control": list(CONTROLLERS),
    "sampling": ["greedy", "drawn"],
}
SAMPLINGS = {"greedy": SamplingParameters(), "drawn": SamplingParameters(temperature=0.8, seed=3)}
TARGET, DRAFT = FakeModel(), FakeModel(agreement=0.8)
PROMPTS = ([1, 2, 3, 1, 2], [7, 7, 4])

Way = Mapping[str, str]


def pairs_of(way: Way) -> set[tuple[tuple[str, str], ...]]:
    return set(combinations(way.items(), 2))


def every_pair() -> Iterator[Way]:
    """So many ways that each value of an axis meets each value of every other one."""
    ways = [dict(zip(AXES, values, strict=True)) for values in product(*AXES.values())]
    left = set().union(*map(pairs_of, ways))
    while left:
        way = max(ways, key=lambda way: len(pairs_of(way) & left))
        left -= pairs_of(way)
        yield way


@pytest.mark.parametrize("way", list(every_pair()), ids=lambda way: "-".join(way.values()))
def test_every_pair_of_choices_writes_what_the_target_alone_writes(way: Way) -> None:
    axes = ("drafter", "proposals", "query", "control")
    speculation: dict[str, Any] = {axis: way[axis] for axis in axes}
    config = settings_of(lookahead=4, growth="layered", **speculation)
    requests = [
        replace(
            request_of(prompt, 40, way["decoding"], SAMPLINGS[way["sampling"]], gamma=3),
            growth=way["growth"],
        )
        for prompt in PROMPTS
    ]
    target, draft = FakeEngine(TARGET, tree=False), FakeEngine(DRAFT, tree=True)
    with OneProcess(target, draft, config) as both:
        streams = [both.open(request, index) for index, request in enumerate(requests)]
        assert both.run(streams) == [autoregressive(TARGET, request) for request in requests]
        both.close(streams)

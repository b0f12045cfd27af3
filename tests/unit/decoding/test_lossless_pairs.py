"""Every pair of choices that the registries allow together writes the text of the target alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest
from fake_engine import FakeEngine, FakeModel
from one_process import OneProcess, autoregressive, request_of, settings_of

from card.cache import SlotRequest
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


EVERY_PAIR = pytest.mark.parametrize(
    "way", list(every_pair()), ids=lambda way: "-".join(way.values())
)


def written(way: Way, acceptance: str) -> list[tuple[SlotRequest, list[int], int]]:
    """Requests decoded this way, what each wrote, and how many tokens it says are foreign."""
    axes = ("drafter", "proposals", "query", "control")
    speculation: dict[str, Any] = {axis: way[axis] for axis in axes}
    config = settings_of(
        ngram_tokens=4, growth="layered", loose_entropy=0.0, loose_window=1, **speculation
    )
    requests = [
        replace(
            request_of(prompt, 40, way["decoding"], SAMPLINGS[way["sampling"]], gamma=3),
            growth=way["growth"],
            acceptance=acceptance,
        )
        for prompt in PROMPTS
    ]
    target, draft = FakeEngine(TARGET, tree=False), FakeEngine(DRAFT, tree=True)
    with OneProcess(target, draft, config) as both:
        streams = [both.open(request, index) for index, request in enumerate(requests)]
        texts = both.run(streams)
        foreign = [stream.counters.foreign for stream in streams]
        both.close(streams)
    return list(zip(requests, texts, foreign, strict=True))


@EVERY_PAIR
def test_every_pair_of_choices_writes_what_the_target_alone_writes(way: Way) -> None:
    for request, text, foreign in written(way, "exact"):
        assert (text, foreign) == (autoregressive(TARGET, request), 0)


@EVERY_PAIR
def test_every_pair_counts_the_tokens_of_a_loose_text_that_are_not_the_targets(way: Way) -> None:
    for request, text, foreign in written(way, "loose"):
        if way["sampling"] == "drawn":
            assert (text, foreign) == (autoregressive(TARGET, request), 0)
            continue
        whole = [*request.prompt.tolist(), *text]
        own = [int(TARGET.row_after(whole[:end]).argmax()) for end in range(-len(text), 0)]
        others = [place for place, token in enumerate(text) if token != own[place]]
        assert foreign == len(others)
        assert not {place + 1 for place in others} & {*others, len(text)}, "the window holds"

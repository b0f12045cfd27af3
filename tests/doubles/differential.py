"""Ways to decode, events in between, and one question: is every text that of plain decoding?

A way has one value of each axis. `every_pair` makes few ways in which each value of an axis meets
each value of every other axis. Axes follow the registries, so a new entry is tested by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from one_process import OneProcess, request_of

from card.cache import ROOT, Finish, SlotRequest
from card.constraints import Guide
from card.constraints.compiled import CompiledGuide
from card.constraints.compiler import GuideCompiler
from card.engines import Engine
from card.sampling import SamplingParameters
from card.serving.requests.remote import RemoteDrafts
from card.speculation.control import CONTROLLERS
from card.speculation.drafters import DRAFTERS
from card.speculation.drafters.growth import GROWTHS
from card.speculation.drafters.remote import DeviceDraft
from card.speculation.pacing import PACINGS
from card.speculation.sources import SHAPES, WITHOUT_DRAFT

Way = dict[str, str]
"""A value of each axis."""

SAMPLINGS = {
    "greedy": SamplingParameters(),
    "drawn": SamplingParameters(temperature=0.8, seed=11),
    "top_k": SamplingParameters(temperature=1.3, seed=12, top_k=7, top_p=0.9),
    "min_p": SamplingParameters(
        temperature=1.1, seed=14, min_p=0.1, top_p=0.9, logit_bias=((8, 1.0), (6, -2.0))
    ),
    "penalised": SamplingParameters(
        repetition_penalty=1.4,
        presence_penalty=0.4,
        frequency_penalty=0.2,
        end_ids=(5,),
        min_tokens=9,
    ),
    "bad words": SamplingParameters(
        temperature=0.8,
        seed=13,
        repetition_penalty=1.2,
        frequency_penalty=0.5,
        min_tokens=4,
        bad_words=((3,), (1, 2), (7, 7, 7)),
        end_ids=(9, 4),
    ),
}
SIZES: dict[str, tuple[int, dict[str, Any]]] = {
    "usual": (5, {"rows": 6, "depth": 8, "width": 4}),
    "least": (1, {"rows": 2, "depth": 1, "width": 1}),
    "large": (12, {"rows": 16, "depth": 16, "width": 16}),
    "auto": (3, {"rows": "auto", "depth": 32, "width": 4}),
}
"""Draft tokens before a verification, and the shape of trees and passes."""
GUIDES = {
    "none": None,
    "regex": Guide("regex", "([a-f]{3} [12]{1,3}-){6}"),
    "schema": Guide(
        "json_schema",
        '{"type": "object", "properties": {"a": {"type": "object", "properties": {"b":'
        ' {"type": "string", "pattern": "^[a-d]{2,9}$"}}, "required": ["b"],'
        ' "additionalProperties": false}}, "required": ["a"], "additionalProperties": false}',
    ),
}
_HONEST, _LIES = ("draft", "draft", "target"), ("lie", "target")
FAULTS: dict[str, tuple[str, ...]] = {
    "none": (),
    "draft dies": (*_HONEST * 2, "kill draft"),
    "draft pauses": (*_HONEST, "kill draft", *["target"] * 3, "revive draft"),
    "draft restarts": (*_HONEST * 2, "restart draft"),
    "target restarts": (*_HONEST * 2, "restart target", *_HONEST * 3, "restart target"),
    "both restart": (*_HONEST * 3, "restart draft", "restart target"),
    "draft lies": (*_HONEST, *_LIES * 40),
}
"""Names of `EVENTS`; behind the last one both loops run to the end."""

AXES: Mapping[str, Sequence[str]] = {
    "drafter": [
        *(name for name, drafter in DRAFTERS.items() if drafter.model in ("engine", "engines")),
        *WITHOUT_DRAFT,
    ],
    "growth": list(GROWTHS),
    "pacing": list(PACINGS),
    "proposals": list(WITHOUT_DRAFT),
    "query": list(SHAPES),
    "control": list(CONTROLLERS),
    "size": list(SIZES),
    "sampling": list(SAMPLINGS),
    "guide": list(GUIDES),
    "fault": list(FAULTS),
}


def every_pair(axes: Mapping[str, Sequence[str]]) -> Iterator[Way]:
    """Ways that together hold each pair of values of two axes at least once."""
    left = {
        frozenset({(one, x), (other, y)})
        for one, other in combinations(axes, 2)
        for x in axes[one]
        for y in axes[other]
    }
    while left:
        way = dict(min(left, key=sorted))
        for axis in axes:
            if axis not in way:
                met = {
                    value: sum(frozenset({(axis, value), each}) in left for each in way.items())
                    for value in axes[axis]
                }
                way[axis] = max(met, key=lambda value: met[value])
        left -= set(map(frozenset, combinations(way.items(), 2)))
        yield {axis: way[axis] for axis in axes}


def name_of(way: Way) -> str:
    return "-".join(way.values())


def speculation_of(way: Way) -> dict[str, Any]:
    """Section of the settings."""
    chosen = {axis: way[axis] for axis in ("drafter", "proposals", "query", "control")}
    return {"ngram_tokens": 4, **chosen, **SIZES[way["size"]][1]}


def request_like(
    way: Way, prompt: Sequence[int], tokens: int, ends: tuple[int, ...]
) -> SlotRequest:
    """ends  ids that end a guided text"""
    guide, parameters = GUIDES[way["guide"]], SAMPLINGS[way["sampling"]]
    if guide is not None:
        parameters = replace(parameters, end_ids=ends)
    request = request_of(prompt, tokens, way["pacing"], parameters, SIZES[way["size"]][0])
    return replace(request, growth=way["growth"], guide=guide)


class ReadyGuides(GuideCompiler):
    """Compiles a guide when it is asked for, so that no loop waits for a thread."""

    def _compiled_guide(self, guide: Guide) -> Future[CompiledGuide]:
        if guide not in self._compiled:
            self._compiled[guide] = ready = Future[CompiledGuide]()
            ready.set_result(self._compile(guide))
        return self._compiled[guide]


class Scene:
    """Open streams, their loops, and what may happen to them.

    plain    the text of each request by plain decoding
    started  an engine as a new process of "target" or "draft" has it
    """

    def __init__(
        self,
        both: OneProcess,
        requests: Sequence[SlotRequest],
        plain: Sequence[Sequence[int]],
        started: Callable[[str], Engine],
        seed: int = 0,
    ) -> None:
        self._both = both
        self._streams = [both.open(request, index) for index, request in enumerate(requests)]
        self._requests = requests
        self._plain = plain
        self._started = started
        self._random = np.random.default_rng(seed)
        self._draft_lives = self._draft_is_honest = True

    def play(self, events: Sequence[str], then: Sequence[str] = _HONEST) -> None:
        """Each stream is a beginning of its plain text behind each event, and the whole of it once
        it has ended; `then` is repeated until all have."""
        for event in events:
            self._happen(event)
        if not self._draft_is_honest:
            self.kill_draft()  # otherwise a pacing waits for its passes
        for _ in range(5000):
            if all(stream.finish is not Finish.RUNNING for stream in self._streams):
                if self._draft_is_honest:
                    self._both.close(self._streams)
                return
            for event in then:
                self._happen(event)
        raise AssertionError(f"no end: {[stream.output for stream in self._streams]}")

    @property
    def accepted(self) -> int:
        return sum(stream.counters.accepted for stream in self._streams)

    def _happen(self, event: str) -> None:
        EVENTS[event](self)
        for stream, text in zip(self._streams, self._plain, strict=True):
            output, finish = stream.output, stream.finish
            whole = text if finish is not Finish.RUNNING else text[: len(output)]
            assert output == list(whole), f"{output} behind {event}, not {list(whole)}"

    def draft_step(self) -> None:
        if self._draft_lives and self._draft_is_honest:
            self._both.draft.step()

    def target_step(self) -> None:
        self._both.target.step()

    def kill_draft(self) -> None:
        self._both.kill_draft()
        self._draft_lives = False

    def revive_draft(self) -> None:
        self._both.revive_draft()
        self._draft_lives = True

    def restart_draft(self) -> None:
        self._both.restart_draft(self._started("draft"))
        self.revive_draft()
        self._draft_is_honest = True

    def restart_target(self) -> None:
        self._both.restart_target(self._started("target"))

    def lie(self) -> None:
        """The draft's process writes what it likes in a slot, and no honest tree from now on."""
        self._draft_is_honest = False
        index = int(self._random.integers(len(self._streams)))
        lies = [_garbage, _stale, _tempting, _duplicated]
        lie = int(self._random.integers(len(lies) + 2))
        if lie >= len(lies):
            (self._scribble, self._scribble_chain)[lie - len(lies)](index)
            return
        text = [*self._requests[index].prompt.tolist(), *self._plain[index]]
        stream = self._streams[index]
        at = len(self._requests[index].prompt) + len(stream.output)
        root, tokens, parents, scores = lies[lie](self._random, text, at)
        vocabulary = self._both.target_engine.vocabulary
        self._both.pool.draft_slot(index).replace(
            stream.session_id - int(lie == 1 and self._random.random() < 0.5),
            root,
            np.array(tokens, np.int64) % vocabulary,
            np.array(parents, np.int64),
            np.array(scores, np.float64),
        )

    def _scribble(self, index: int) -> None:
        """Bytes that are no tree, or hardly one."""
        record, draw = self._both.pool.slots[index], self._random
        half = int(draw.integers(2))
        name = ("node_token", "node_parent", "node_score")[draw.integers(3)]
        places = draw.integers(0, 20, 6)
        record[name][half][places] = draw.integers(-3, 27, 6)
        if draw.random() < 0.3:
            record["node_count"][half] = draw.integers(-5, 300)
        if draw.random() < 0.3:
            record["node_score"][half][places] = draw.choice([np.nan, np.inf, -np.inf, 0.0])
        if draw.random() < 0.2:
            record["passes"][half] = draw.integers(-5, 1 << 40)
        if draw.random() < 0.2:
            record["flip"] += 1

    def _scribble_chain(self, index: int) -> None:
        """Where candidates of a device stand: a draft of its own, or any words."""
        draw, stream, key = self._random, self._streams[index], self._requests[index]
        if key.draft_key_digest is not None and draw.random() < 0.5:
            tokens = draw.integers(0, 20, draw.integers(1, 65)).tolist()
            device = RemoteDrafts(self._both.pool, self._both.target_engine.vocabulary)
            place = int(draw.integers(len(stream.output) + 1))
            device.take(key.draft_key_digest, DeviceDraft(place, tokens))
            return
        record, bound = self._both.pool.slots[index], int(draw.choice([13, 1 << 40]))
        for name in ("chain_token", "chain_length", "chain_root_length"):
            record[name][...] = draw.integers(-bound // 9, bound, record[name].shape)
        record["chain_flip"] += 1
        record["chain_session_id"][...] = stream.session_id


EVENTS: Mapping[str, Callable[[Scene], None]] = {
    "draft": Scene.draft_step,
    "target": Scene.target_step,
    "lie": Scene.lie,
    "kill draft": Scene.kill_draft,
    "revive draft": Scene.revive_draft,
    "restart draft": Scene.restart_draft,
    "restart target": Scene.restart_target,
}

Lie = tuple[int, Sequence[int], Sequence[int], Sequence[float]]
"""Length of the text at a tree's root; tokens, parents and scores of its nodes."""


def _garbage(draw: np.random.Generator, text: list[int], at: int) -> Lie:
    """A sound tree of random tokens."""
    count = int(draw.integers(60))
    parents = [int(draw.integers(ROOT, i)) for i in range(count)]
    return (
        at,
        draw.integers(0, 1 << 20, count).tolist(),
        parents,
        (-draw.exponential(1.0, count)).tolist(),
    )


def _stale(draw: np.random.Generator, text: list[int], at: int) -> Lie:
    """The right text at a wrong root."""
    tokens = text[at:][:60]
    return int(draw.integers(-2, len(text) + 3)), tokens, _chain(tokens), [0.0] * len(tokens)


def _tempting(draw: np.random.Generator, text: list[int], at: int) -> Lie:
    """The right text with one wrong token, and right tokens again behind it."""
    tokens = text[at:][:60]
    if tokens:
        tokens[int(draw.integers(len(tokens)))] += 1
    return at, tokens, _chain(tokens), [-0.1] * len(tokens)


def _duplicated(draw: np.random.Generator, text: list[int], at: int) -> Lie:
    """The right tokens as siblings of themselves, with different nodes below each."""
    right = [*text[at : at + 3], 0]
    tokens = [right[int(n)] for n in draw.integers(0, len(right), 30)]
    parents = [int(draw.integers(ROOT, min(i, 4))) for i in range(30)]
    return at, tokens, parents, [-0.01 * i for i in range(30)]


def _chain(tokens: Sequence[int]) -> list[int]:
    """Parents of nodes that follow one another."""
    return list(range(ROOT, len(tokens) - 1))

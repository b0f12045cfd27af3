"""Lossless with trained weights: real arithmetic and real text on each engine that we control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

import pytest
from differential import (
    AXES,
    FAULTS,
    ReadyGuides,
    Scene,
    Way,
    every_pair,
    name_of,
    request_like,
    speculation_of,
)
from one_process import OneProcess
from real_pair import TARGET, pair_settings
from tokenizers import Tokenizer

from card.constraints.compiled import GuidedTokens
from card.engines import Engine, Text
from card.engines.interface import RowCosts
from card.loading import Examination, load_engine
from card.settings import Settings

PROMPTS = [
    'def fibonacci(n):\n    """The n-th Fibonacci number."""\n',
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self",
    "import os\n\n\ndef list_files(directory):\n    for",
]
TOKENS = 32
FIRST = {axis: values[0] for axis, values in AXES.items()}
WAYS: list[Way] = [
    *({"engine": "openvino", **way} for way in every_pair(AXES)),
    # An eager decoder is slow; these are the axes that change the rows of its passes.
    *(
        {"engine": "torch", **FIRST, "pacing": "card", **way}
        for way in every_pair({axis: AXES[axis] for axis in ("query", "size")})
    ),
]
_COSTS = RowCosts({1: 1.0, 4: 1.1, 8: 1.6, 16: 2.6, 32: 4.6}, alone_share=0.7)
"""Fixed costs of passes, because a measurement takes time."""


class Process:
    """An engine as a new process has it: without the sessions of the process before."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def open_session(self, text: Text = (), salt: bytes = b"") -> int:
        session = self._engine.open_session(text, salt)
        self._open.add(session)
        return session

    def close_session(self, session: int) -> None:
        self._open.remove(session)
        self._engine.close_session(session)

    def die(self) -> None:
        while self._open:
            self.close_session(next(iter(self._open)))


@dataclass(frozen=True)
class Pair:
    """The pair on one engine. A target that is queried for subtrees attends under masks, so its
    bits in bfloat16 differ from those of a target for chains."""

    settings: Settings
    target: Engine
    draft: Engine
    prompts: list[list[int]]
    guides: GuidedTokens


@cache
def pair_on(engine: str, query: str) -> Pair:
    # The other engine and the other query show that the number of threads changes no bit.
    threads = {} if (engine, query) == ("openvino", "chain") else {"threads": 1, "threads_alone": 1}
    settings = pair_settings(
        speculation={"query": query},
        target={"engine": engine, **threads},
        draft={"engine": engine, **({} if engine == "openvino" else {"threads": 1})},
        cache={"slots": 4, "nodes": 128},
        limits={"prompt_tokens": 64, "context_tokens": 128},
        serving={"engine_timeout_s": 600},
    )
    load = partial(
        load_engine, settings, examination=Examination(measure_row_costs=lambda _: _COSTS)
    )
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    return Pair(settings, load("target"), load("draft"), prompts, GuidedTokens.load(TARGET))


def played(way: Way, prompts: Sequence[list[int]], plain: Sequence[list[int]]) -> int:
    """The number of accepted candidates of texts that are decoded together."""
    pair = pair_on(way["engine"], way["query"])
    engines: dict[str, Engine] = {"target": pair.target, "draft": pair.draft}
    processes: dict[str, Process] = {}

    def started(role: str) -> Engine:
        if role in processes:
            processes[role].die()
        processes[role] = Process(engines[role])
        return cast("Engine", processes[role])

    settings = settings_for(pair, way)
    requests = [request_like(way, prompt, TOKENS, tuple(pair.guides.end_ids)) for prompt in prompts]
    guides = ReadyGuides(lambda: pair.guides)
    with OneProcess(started("target"), started("draft"), settings, guides) as both:
        scene = Scene(both, requests, plain, started)
        scene.play(FAULTS[way["fault"]])
        accepted = scene.accepted
    for process in processes.values():
        process.die()
    return accepted


def settings_for(pair: Pair, way: Way) -> Settings:
    speculation = pair.settings.speculation.model_copy(update=speculation_of(way))
    draft = pair.settings.draft.model_copy(update={"mask_ids": (2,)})
    return pair.settings.model_copy(update={"speculation": speculation, "draft": draft})


@cache
def plain_texts(engine: str, query: str, sampling: str, guide: str) -> list[list[int]]:
    """What the target writes alone, one text at a time."""
    pair = pair_on(engine, query)
    asked = {"pacing": "autoregressive", "query": query, "sampling": sampling, "guide": guide}
    way = FIRST | asked
    texts = []
    for prompt in pair.prompts:
        request = request_like(way, prompt, TOKENS, tuple(pair.guides.end_ids))
        guides = ReadyGuides(lambda: pair.guides)
        with OneProcess(pair.target, pair.draft, settings_for(pair, way), guides) as both:
            stream = both.open(request)
            texts += both.run([stream], draft_steps=0)
            both.close([stream])
    return texts


@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_text_when_any_two_choices_meet_equals_plain_decoding(way: Way) -> None:
    plain = plain_texts(*(way[axis] for axis in ("engine", "query", "sampling", "guide")))
    together = 1 + WAYS.index(way) % len(PROMPTS)
    played(way, pair_on(way["engine"], way["query"]).prompts[:together], plain[:together])


@pytest.mark.parametrize("engine", ["openvino", "torch"])
def test_candidates_when_the_draft_is_trained_are_accepted(engine: str) -> None:
    way = FIRST | {"engine": engine, "pacing": "card"}
    plain = plain_texts(engine, way["query"], way["sampling"], way["guide"])
    assert played(way, pair_on(engine, way["query"]).prompts, plain) > TOKENS

"""vLLM's process without Triton: a pool of the test's own, and requests opened in its slots."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from real_pair import PAIR

from card.cache import CardSlot, Finish, Pool, SlotRequest
from card.constraints import Guide
from card.sampling import SamplingParameters
from card.serving.geometry import pool_geometry
from card.settings import Settings
from card.vllm.process import VllmProcess, Watch

LIMIT_S = 120.0
SLOTS = 16
PROMPTS = [[5 + first, 6, 7, 8, 9, 10] for first in range(8)]
MAX_TOKENS = 64

Liar = Callable[[Pool, int, int, int], None]
"""Writes candidates: pool, slot, session id, length of prompt and output."""


def settings_of(directory: Path, **changes: Any) -> Settings:
    content: dict[str, Any] = {
        "target": {"path": str(PAIR / "target"), "engine": "vllm", "dtype": "float32"},
        "draft": {"path": str(PAIR / "draft")},
        "cache": {"slots": SLOTS, "directory": str(directory)},
        "limits": {"prompt_tokens": 256, "context_tokens": 384, "max_tokens": 256},
    }
    for section, fields in changes.items():
        content[section] = {**content.get(section, {}), **fields}
    return Settings.model_validate(content)


def guided(kind: str, text: str) -> dict[str, Guide]:
    return {"guide": Guide(kind, text)}


def request_of(
    prompt: Sequence[int], pacing: str = "card", max_tokens: int = MAX_TOKENS, **fields: Any
) -> SlotRequest:
    """Fields of `SlotRequest` or of its sampling parameters."""
    names = SamplingParameters.__dataclass_fields__
    parameters = {name: fields.pop(name) for name in list(fields) if name in names}
    return SlotRequest(
        np.array(prompt, np.int64), max_tokens, pacing, SamplingParameters(**parameters), **fields
    )


def plainly(request: SlotRequest) -> SlotRequest:
    """The same request without candidates."""
    return replace(request, pacing="autoregressive")


@dataclass
class Answer:
    """What the target committed to one request."""

    tokens: list[int]
    finish: Finish
    drafted: int
    accepted: int
    log_probabilities: list[float] = field(default_factory=list)
    likeliest: list[list[tuple[int, float]]] = field(default_factory=list)
    prompt_log_probabilities: list[float] = field(default_factory=list)


class RunningTarget:
    """A pool, and vLLM's process which serves it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._what, self._limit_s = "", 0.0
        self.pool = Pool.create(settings.cache.directory, os.getpid(), pool_geometry(settings))
        self.slots = [self.pool.card_slot(index) for index in range(settings.cache.slots)]
        self.target: VllmProcess
        self._watch: Watch
        self._what, self._limit_s = "", 0.0
        self.start()

    def start(self) -> None:
        """As Triton's process does at first, and when it is loaded again."""
        self.target = VllmProcess(self.settings, "target", os.getpid())
        self._watch = self.target.make_loop(self.pool)

    @property
    def pid(self) -> int:
        return self.target._process.pid

    def open(self, request: SlotRequest) -> tuple[CardSlot, int]:
        """Open a free slot for the request; the slot and the session's id."""
        slot = next(slot for slot in self.slots if slot.reclaim() or not slot.state)
        session_id = self.pool.new_session_id()
        slot.open(request, session_id)
        return slot, session_id

    def ask(self, requests: Sequence[SlotRequest], liar: Liar | None = None) -> list[Answer]:
        """What the target commits to these requests, all at the same time."""
        opened = [self.open(request) for request in requests]
        told = [-1] * len(opened)
        for place, (slot, session_id) in enumerate(opened):
            while slot.finish(session_id) is Finish.RUNNING:
                for other, (one, its_id) in enumerate(opened):
                    committed = one.committed(its_id)
                    if liar is not None and committed != told[other]:
                        told[other] = committed
                        length = len(requests[other].prompt) + committed
                        liar(self.pool, one.index, its_id, length)
                self.look(f"request {place} ends")
        answers = [
            self.answer(*pair, request) for pair, request in zip(opened, requests, strict=True)
        ]
        for slot, session_id in opened:
            self.close(slot, session_id)
        return answers

    def answer(self, slot: CardSlot, session_id: int, request: SlotRequest) -> Answer:
        count, counters = slot.committed(session_id), slot.counters()
        answer = Answer(
            slot.output(0, count).tolist(),
            slot.finish(session_id),
            counters.drafted,
            counters.accepted,
        )
        if request.log_probabilities:
            answer.log_probabilities = slot.log_probabilities(0, count).tolist()
            answer.likeliest = [slot.likeliest(place) for place in range(count)]
        if request.prompt_log_probabilities:
            places = range(1, len(request.prompt))
            answer.prompt_log_probabilities = [slot.prompt_log_probability(at) for at in places]
        return answer

    def close(self, slot: CardSlot, session_id: int) -> None:
        slot.close()
        self._until(lambda: bool(slot._record["released"] == session_id), "the slot is released")

    def look(self, what: str) -> None:
        """Let vLLM's process work on. Raises `EngineError` if it ended."""
        if self._what != what:
            self._limit_s, self._what = time.monotonic() + LIMIT_S, what
        assert time.monotonic() < self._limit_s, f"not within {LIMIT_S:g} s: {what}"
        rings = self.pool.commit_bell.rings
        self.pool.commit_bell.wait(rings, 0.002)
        if self.target._process.poll() is not None:
            self._watch.step()

    def until_ended(self) -> None:
        """Raises `EngineError` once vLLM's process has ended."""
        while True:
            self.look("the end of vLLM's process")

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        while not holds():
            self.look(what)

    def stop(self) -> None:
        self.target.close()
        self.pool.unlink()


@contextmanager
def running_target(directory: Path, **changes: Any) -> Iterator[RunningTarget]:
    running = RunningTarget(settings_of(directory, **changes))
    try:
        yield running
    finally:
        running.stop()

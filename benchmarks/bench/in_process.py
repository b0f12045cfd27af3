"""Both loops without a server: the target in this process, the draft beside it or in its own.

Autoregressive and CARD run as in production, one process per model. Draft-then-verify gets what
suits it best: one process whose cores all belong to whichever model runs.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection

import numpy as np
import torch
from numpy.typing import NDArray

from card.cache import Decoding, EngineState, Finish, Pool, SlotCounters, SlotRequest
from card.decoding import TargetLoop, TargetTimes
from card.drafting import DraftLoop
from card.engines import load_engine
from card.sampling import SamplingParameters
from card.serving.engine_process import EngineProcess
from card.serving.geometry import pool_geometry
from card.settings import Settings

_START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Run:
    """One completion: its tokens, how long it took, and what the loops counted."""

    tokens: list[int]
    seconds: float
    first_token_s: float
    counters: SlotCounters
    target: TargetTimes
    draft_idle_s: float

    @property
    def tokens_per_s(self) -> float:
        return len(self.tokens) / self.seconds


class InProcess:
    """A target engine, a pool and a draft, driven request by request."""

    def __init__(self, settings: Settings, pool: Pool, draft: _DraftProcess | None) -> None:
        self._settings = settings
        self._pool = pool
        self._draft_process = draft
        self.engine = load_engine(settings, "target")
        self._target = TargetLoop(self.engine, pool, settings)
        self._local_draft = (
            DraftLoop(load_engine(settings, "draft"), pool, settings) if draft is None else None
        )

    def complete(
        self,
        prompt: NDArray[np.int64],
        decoding: Decoding,
        parameters: SamplingParameters,
        max_tokens: int,
        *,
        threads: int,
        gamma: int = 8,
    ) -> Run:
        """Decode one prompt with `threads` threads for whichever model runs here."""
        torch.set_num_threads(threads)
        slot = self._pool.card_slot(0)
        generation = self._pool.new_generation()
        before = _copy(self._target.times)
        idle_before = self._draft_idle_ns()
        started = time.perf_counter()
        slot.open(SlotRequest(prompt, max_tokens, decoding, parameters, gamma), generation)
        first: float | None = None
        while slot.finish(generation) is Finish.RUNNING:
            if self._local_draft is not None and decoding is not Decoding.AUTOREGRESSIVE:
                self._pool.beat("draft", EngineState.ATTACHED)
                self._local_draft.step()
            self._target.step()
            if first is None and slot.committed(generation):
                first = time.perf_counter() - started
        seconds = time.perf_counter() - started
        tokens = slot.output(0, slot.committed(generation)).tolist()
        counters = slot.counters()
        idle = self._draft_idle_ns() - idle_before
        slot.close()
        while not slot.reclaim():
            self._target.step()
        times = _difference(self._target.times, before)
        return Run(tokens, seconds, first or seconds, counters, times, idle / 1e9)

    def _draft_idle_ns(self) -> int:
        return int(self._pool.header["draft_waiting_ns"][0])


@contextmanager
def in_process(settings: Settings, *, draft_beside: bool) -> Iterator[InProcess]:
    """An engine pair; `draft_beside` gives the draft a process of its own."""
    directory = settings.cache.directory
    pool = Pool.create(directory, os.getpid(), pool_geometry(settings))
    try:
        if not draft_beside:
            yield InProcess(settings, pool, None)
            return
        draft = _DraftProcess(settings, pool.new_key())
        try:
            yield InProcess(settings, pool, draft)
        finally:
            draft.stop()
    finally:
        pool.unlink()


class _DraftProcess:
    """The draft engine in a process of its own, as a Triton stub would run it."""

    def __init__(self, settings: Settings, key: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_run_draft, args=(settings, os.getpid(), key, theirs), daemon=True
        )
        self._process.start()
        if not self._ours.poll(_START_TIMEOUT_S):
            raise RuntimeError(f"the draft process did not start within {_START_TIMEOUT_S:.0f} s")
        self._ours.recv()

    def stop(self) -> None:
        self._ours.send(None)
        self._process.join()


def _run_draft(settings: Settings, parent: int, key: str, parents: Connection) -> None:
    engine = load_engine(settings, "draft")
    process = EngineProcess(
        "draft",
        settings.cache.directory,
        pool_geometry(settings),
        lambda pool: DraftLoop(engine, pool, settings),
        engine_timeout_s=settings.serving.engine_timeout_s,
        server_pid=parent,
    )
    process.start()
    process.attach(key, time.monotonic_ns() + int(_START_TIMEOUT_S * 1e9))
    parents.send(None)
    parents.recv()
    process.stop()


def _copy(times: TargetTimes) -> TargetTimes:
    return TargetTimes(*(getattr(times, field.name) for field in fields(TargetTimes)))


def _difference(now: TargetTimes, before: TargetTimes) -> TargetTimes:
    return TargetTimes(
        *(getattr(now, field.name) - getattr(before, field.name) for field in fields(TargetTimes))
    )

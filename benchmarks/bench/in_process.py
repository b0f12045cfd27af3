"""Both loops without a server: the target in this process, the draft beside it or here too.

Autoregressive decoding and CARD run as in production, one process per model. Draft-then-verify
gets what suits it best: one process, where the model that runs has all cores.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from bench.engines import Engines, let_torch_use
from bench.measurement import Measurement, Task, draft_counts, slot_counts
from card.cache import EngineState, Finish, Pool, SlotRequest
from card.decoding import TargetLoop, TargetTimes
from card.drafting import DraftLoop, make_drafters
from card.engines import EngineError
from card.engines.calibration import ConfigurableEngine
from card.loading import load_engine, load_small_draft
from card.sampling import SamplingParameters
from card.serving.geometry import pool_geometry
from card.serving.triton.engine_process import EngineProcess
from card.settings import Settings
from card.speculation.control.measured import best_rows
from card.speculation.pacing import PACINGS
from card.text import Detokenizer

_START_TIMEOUT_S = 120.0


def parameters_of(task: Task) -> SamplingParameters:
    """The task's parameters as they arrive on the wire, where the temperature has 32 bits.

    No token ends a text: every completion has the same number of tokens.
    """
    return SamplingParameters(temperature=float(np.float32(task.temperature)), seed=task.seed)


def slot_request(
    task: Task, decoding: str, gamma: int = 1, acceptance: str = "exact"
) -> SlotRequest:
    """The task as it stands in a slot; its whole prompt is read."""
    return SlotRequest(
        np.array(task.prompt.tokens, np.int64),
        task.max_tokens,
        decoding,
        parameters_of(task),
        gamma,
        acceptance=acceptance,
        salt=task.salt,
        reuses_kv=False,
    )


class Loops:
    """A pool and its target loop; the draft's loop too where the draft has no process of its own.

    target_on  makes the target's loop on so many threads, and on more of them while the draft is
               stopped if its second argument says so, as in production
    draft_on   makes the draft's loop on so many threads
    """

    def __init__(
        self,
        pool: Pool,
        tokenizer: Tokenizer,
        target_on: Callable[[int, bool], TargetLoop],
        draft_on: Callable[[int], DraftLoop] | None = None,
    ) -> None:
        self.pool = pool
        self._tokenizer = tokenizer
        self._target_on = cache(target_on)
        self._draft_on = None if draft_on is None else cache(draft_on)
        self._target: TargetLoop
        self._draft: DraftLoop | None = None
        # A full collection looks through all that this process has imported, ten times what a
        # model's process has: 140 ms in the middle of a measurement.
        gc.freeze()

    def use(self, threads: int, decoding: str) -> None:
        """From now on step the loops on so many threads."""
        # Decoding alone is measured on exactly so many threads, and in draft-then-verify both
        # models have all of them; otherwise the target takes the cores of a stopped draft.
        self._target = self._target_on(threads, PACINGS[decoding].parallel)
        if self._draft_on is not None:
            self._draft = self._draft_on(threads)
        let_torch_use(threads)

    def announce(self) -> None:
        """Beat for the draft if it runs here: nothing else does."""
        if self._draft is not None:
            self.pool.beat("draft", EngineState.ATTACHED)

    @property
    def times(self) -> TargetTimes:
        """What the target's loop has spent so far."""
        return self._target.times

    def complete(
        self,
        task: Task,
        decoding: str,
        *,
        threads: int,
        gamma: int = 1,
        acceptance: str = "exact",
    ) -> Measurement:
        """Decode one text with `threads` threads for the models that run here."""
        self.use(threads, decoding)
        request = slot_request(task, decoding, gamma, acceptance)
        slot, session_id = self.pool.card_slot(0), self.pool.new_session_id()
        self.announce()
        drafted, before = draft_counts(self.pool), replace(self.times)
        started = time.perf_counter()
        slot.open(request, session_id)
        while not slot.committed(session_id) and slot.finish(session_id) is Finish.RUNNING:
            self.step()
        first_token_s, prefilled = time.perf_counter() - started, replace(self.times)
        while slot.finish(session_id) is Finish.RUNNING:
            self.step()
        seconds = time.perf_counter() - started
        if slot.finish(session_id) is not Finish.LENGTH:
            raise RuntimeError(f"prompt {task.prompt.id}: the target gave up on the text")
        tokens = slot.output(0, slot.committed(session_id)).tolist()
        counts = slot_counts(slot.counters())
        counts.update(draft_counts(self.pool, drafted))
        counts["target_wait_ns"] = self.times.waiting - before.waiting
        counts["later_steps"] = self.times.steps - prefilled.steps
        for phase in ("query", "forward", "verify"):
            counts[f"{phase}_ns"] = getattr(self.times, phase) - getattr(prefilled, phase)
        slot.close()
        while not slot.reclaim():
            self.step()
        text = text_of(self._tokenizer, task, tokens)
        return Measurement(text, tuple(tokens), len(tokens), seconds, first_token_s, counts)

    def step(self) -> None:
        """One step of each loop that runs here."""
        if self._draft is not None:
            self._draft.step()
        self._target.step()


class InProcess:
    """The pair as this process runs it.

    rows        of a target pass: those of the settings; if rows adapt, those that a text begins
                with
    rows_adapt  whether the rows of a pass follow acceptance
    """

    def __init__(
        self, settings: Settings, tokenizer: Tokenizer, engines: Engines | None = None
    ) -> None:
        self.settings = settings
        self.engines = engines or Engines(settings)
        rows = settings.speculation.rows
        self.rows_adapt = rows == "auto"
        self.rows = best_rows(self.target.row_costs_ms) if rows == "auto" else rows
        self._tokenizer = tokenizer

    @property
    def target(self) -> ConfigurableEngine:
        """As in production."""
        return self.engines.on("target", self.settings.target.threads, spreads=True)

    def rows_for(self, candidates: int) -> int:
        """`rows`; where they are fixed, enough to verify so many candidates."""
        return self.rows if self.rows_adapt else max(candidates + 1, self.rows)

    def room_for(self, candidates: int, width: int) -> dict[str, Any]:
        """What a pacing that waits for so many candidates changes of the settings."""
        return {"width": width, "rows": "auto" if self.rows_adapt else self.rows_for(candidates)}

    @contextmanager
    def beside(self, draft: Path | None = None, **speculation: Any) -> Iterator[Loops]:
        """Autoregressive, PEARL and CARD: the draft, if there is one, in a process of its own.

        draft        another checkpoint than the settings name
        speculation  what differs from the settings
        """
        settings = with_speculation(self.settings, **speculation)
        if draft is not None:
            other = settings.draft.model_copy(update={"path": draft})
            settings = settings.model_copy(update={"draft": other})
        with _home(settings) as (pool, settings):
            process = _DraftProcess(settings, pool.new_key()) if "draft" in settings.roles else None

            def target_on(threads: int, spreads: bool) -> TargetLoop:
                return TargetLoop(
                    self.engines.on("target", threads, spreads=spreads), pool, settings
                )

            try:
                yield Loops(pool, self._tokenizer, target_on)
            finally:
                if process is not None:
                    process.stop()

    @contextmanager
    def alternating(self, **speculation: Any) -> Iterator[Callable[[int, int], Loops]]:
        """Draft-then-verify: both models here. Yields what makes the loops of a (γ, width).

        speculation  what differs from the settings, and from what a (γ, width) changes of them
        """
        # The draft beats once a text, from this thread.
        patient = self.settings.serving.model_copy(update={"engine_timeout_s": _START_TIMEOUT_S})
        usual = self.settings.model_copy(update={"serving": patient})

        def loops_of(gamma: int, width: int) -> Loops:
            settings = with_speculation(usual, **{**self.room_for(gamma, width), **speculation})

            def target_on(threads: int, _: bool) -> TargetLoop:
                return TargetLoop(self.engines.on("target", threads), pool, settings)

            def draft_on(threads: int) -> DraftLoop:
                small = None
                if settings.has_small_draft:
                    small = self.engines.on("draft_small", threads)
                drafters = make_drafters(self.engines.on("draft", threads), settings, small)
                return DraftLoop(drafters, pool)

            return Loops(pool, self._tokenizer, target_on, draft_on)

        with _home(self.settings) as (pool, _):
            yield loops_of


def with_speculation(settings: Settings, **changes: object) -> Settings:
    """The settings with other values in their section `speculation`."""
    speculation = settings.speculation.model_copy(update=changes)
    return settings.model_copy(update={"speculation": speculation})


def text_of(tokenizer: Tokenizer, task: Task, tokens: list[int]) -> str:
    """The text of `tokens` as a server sends it."""
    detokenizer = Detokenizer(tokenizer, task.prompt.tokens)
    pushed = detokenizer.push(tokens, [False] * len(tokens))
    return pushed.text + detokenizer.finish().text


@contextmanager
def _home(settings: Settings) -> Iterator[tuple[Pool, Settings]]:
    """A pool in a folder of its own, because a process has one pool in a folder, and the settings
    that name the folder."""
    usual = settings.cache.directory
    with tempfile.TemporaryDirectory(prefix="card-bench-", dir=usual) as home:
        cache = settings.cache.model_copy(update={"directory": Path(home)})
        pool = Pool.create(cache.directory, os.getpid(), pool_geometry(settings))
        try:
            yield pool, settings.model_copy(update={"cache": cache})
        finally:
            pool.unlink()
            pool.close()


class _DraftProcess:
    """The draft engine in a process of its own, as a Triton stub would run it."""

    def __init__(self, settings: Settings, key: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_run_draft, args=(settings, os.getpid(), key, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        try:
            self._ours.recv()
        except EOFError:
            raise EngineError("the draft process ended while it started; see above") from None

    def stop(self) -> None:
        with suppress(BrokenPipeError):  # it ended by itself
            self._ours.send(None)
        self._process.join()


def _run_draft(settings: Settings, parent: int, key: str, parents: Connection) -> None:
    # A Ctrl-C is for the parent, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # `kill -USR1` prints where a hanging process stands.
    faulthandler.register(signal.SIGUSR1)
    engine, small = load_engine(settings, "draft"), load_small_draft(settings)
    process = EngineProcess(
        "draft",
        settings.cache.directory,
        pool_geometry(settings),
        lambda pool: DraftLoop(
            make_drafters(engine, settings, small), pool, pass_ms=engine.row_costs_ms.get(1, 0.0)
        ),
        engine_timeout_s=settings.serving.engine_timeout_s,
        server_pid=parent,
    )
    process.start()
    process.attach(key, time.monotonic_ns() + int(_START_TIMEOUT_S * 1e9))
    parents.send(None)
    with suppress(EOFError):  # the parent died
        parents.recv()
    process.stop()

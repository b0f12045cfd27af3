"""Both loops without a server: the target in this process, the draft beside it or here too.

Autoregressive and CARD run as in production, one process per model. Draft-then-verify gets what
suits it best: one process whose cores all belong to whichever model runs.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from bench.activity import DraftActivity
from bench.engines import CheckpointEngine, Engines, let_torch_use
from bench.measurement import Measurement, Phases, Task
from card.cache import EngineState, Finish, Pool, SlotRequest
from card.decoding import TargetLoop, TargetTimes
from card.drafting import DraftLoop, make_drafters
from card.loading import load_engine, load_small_draft
from card.sampling import SamplingParameters
from card.serving.geometry import pool_geometry
from card.serving.triton.engine_process import EngineProcess
from card.settings import Settings
from card.speculation.control.measured import best_rows
from card.speculation.pacing import PACINGS
from card.text import Detokenizer

_START_TIMEOUT_S = 120.0


class DraftProcessError(RuntimeError):
    """The draft's process did not start; the message says why."""


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
    """A pool and its target loop; the draft's loop too where it has no process of its own.

    target_on  makes the loop of an engine with so many threads; whether with more of them while
               the draft is stopped, as in production; of all that were made, the one that was
               chosen last is stepped
    draft_on   makes that of the draft's engine
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
        """From now on so many threads, for whichever model runs here."""
        # Decoding alone is measured on exactly so many threads, and in draft-then-verify both
        # models have all of them; else the target takes the cores of a draft that is stopped.
        self._target = self._target_on(threads, PACINGS[decoding].parallel)
        if self._draft_on is not None:
            self._draft = self._draft_on(threads)
        let_torch_use(threads)

    def announce(self) -> None:
        """Say that the draft lives, if it runs here, where nothing else does."""
        if self._draft is not None:
            self.pool.beat("draft", EngineState.ATTACHED)

    @property
    def times(self) -> TargetTimes:
        """What the target's loop has spent; it goes on counting."""
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
        """Decode one text with `threads` threads for whichever model runs here."""
        self.use(threads, decoding)
        request = slot_request(task, decoding, gamma, acceptance)
        slot, session_id = self.pool.card_slot(0), self.pool.new_session_id()
        self.announce()
        times, drafted = self.times, self._draft_activity()
        before = replace(times)
        started = time.perf_counter()
        slot.open(request, session_id)
        while not slot.committed(session_id) and slot.finish(session_id) is Finish.RUNNING:
            self.step()
        first_token_s = time.perf_counter() - started
        prefilled = replace(times)
        while slot.finish(session_id) is Finish.RUNNING:
            self.step()
        seconds = time.perf_counter() - started
        if slot.finish(session_id) is not Finish.LENGTH:
            raise RuntimeError(f"prompt {task.prompt.id}: the target gave up on the text")
        tokens = slot.output(0, slot.committed(session_id)).tolist()
        counters = slot.counters()
        drafted = self._draft_activity().since(drafted)
        slot.close()
        while not slot.reclaim():
            self.step()
        return Measurement(
            text=text_of(self._tokenizer, task, tokens),
            tokens=tuple(tokens),
            generated=len(tokens),
            seconds=seconds,
            first_token_s=first_token_s,
            steps=counters.steps,
            drafted=counters.drafted,
            accepted=counters.accepted,
            queries=counters.queries,
            hits=counters.hits,
            draft=drafted,
            foreign=counters.foreign,
            layers=counters.layers,
            lost_layers=counters.lost_layers,
            saved_rows=counters.saved_rows,
            target_wait_s=(times.waiting - before.waiting) / 1e9,
            phases=_phases(prefilled, times),
        )

    def step(self) -> None:
        """One look of whoever runs here."""
        if self._draft is not None:
            self._draft.step()
        self._target.step()

    def _draft_activity(self) -> DraftActivity:
        if self._draft is not None:
            return DraftActivity.told_in(self._draft.times)
        return DraftActivity.told_by(self.pool)


class InProcess:
    """The pair as this process runs it.

    rows        of a target pass: those of the settings; where these follow acceptance, the ones
                that a text begins with
    rows_adapt  whether they follow acceptance
    """

    def __init__(
        self, settings: Settings, tokenizer: Tokenizer, engines: Engines | None = None
    ) -> None:
        self.settings = settings
        self.engines = engines or Engines(settings)
        self.dtype = self.engines.dtype
        rows = settings.speculation.rows
        self.rows_adapt = rows == "auto"
        self.rows = best_rows(self.target.row_costs_ms) if rows == "auto" else rows
        self._tokenizer = tokenizer

    @property
    def target(self) -> CheckpointEngine:
        """As in production."""
        return self.target_on(self.settings.target.threads, spreads=True)

    @property
    def draft(self) -> CheckpointEngine:
        """With the settings' threads."""
        return self.draft_on(self.settings.draft.threads)

    def target_on(self, threads: int, *, spreads: bool = False) -> CheckpointEngine:
        """Loaded once for each number of threads. Raises `EngineError`."""
        return self.engines.on("target", threads, spreads=spreads)

    def draft_on(self, threads: int) -> CheckpointEngine:
        """Loaded once for each number of threads. Raises `EngineError`."""
        return self.engines.on("draft", threads)

    def small_draft_on(self, threads: int) -> CheckpointEngine:
        """The model that drafts for the draft. Raises `EngineError`."""
        return self.engines.on("draft_small", threads)

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
                return TargetLoop(self.target_on(threads, spreads=spreads), pool, settings)

            try:
                yield Loops(pool, self._tokenizer, target_on)
            finally:
                if process is not None:
                    process.stop()

    @contextmanager
    def draft_alone(self) -> Iterator[Loops]:
        """The draft model in the target's place: what its own autoregressive decoding reaches."""
        draft = self.settings.draft
        changes = {"path": draft.path, "dtype": draft.dtype, "engine": draft.engine}
        model = self.settings.target.model_copy(update=changes)
        settings = self.settings.model_copy(update={"target": model})
        engines = Engines(settings)
        with _home(settings) as (pool, settings):
            yield Loops(
                pool,
                self._tokenizer,
                lambda threads, _: TargetLoop(engines.on("target", threads), pool, settings),
            )

    @contextmanager
    def alternating(self, **speculation: Any) -> Iterator[Callable[[int, int], Loops]]:
        """Draft-then-verify: both models here. Yields what makes the loops of a (γ, width).

        speculation  what differs from the settings, and from what a (γ, width) changes of them
        """
        with _home(self.settings) as (pool, _):
            yield lambda gamma, width: self._alternating(pool, gamma, width, speculation)

    def _alternating(
        self, pool: Pool, gamma: int, width: int, speculation: Mapping[str, Any]
    ) -> Loops:
        changes = {**self.room_for(gamma, width), **speculation}
        settings = with_speculation(self.settings, **changes)
        # The draft beats once per text, from this thread.
        patient = settings.serving.model_copy(update={"engine_timeout_s": _START_TIMEOUT_S})
        settings = settings.model_copy(update={"serving": patient})

        def draft_on(threads: int) -> DraftLoop:
            small = self.small_draft_on(threads) if settings.has_small_draft else None
            return DraftLoop(make_drafters(self.draft_on(threads), settings, small), pool)

        return Loops(
            pool,
            self._tokenizer,
            lambda threads, _: TargetLoop(self.target_on(threads), pool, settings),
            draft_on,
        )


def with_speculation(settings: Settings, **changes: object) -> Settings:
    """The settings with other values in their section `speculation`."""
    speculation = settings.speculation.model_copy(update=changes)
    return settings.model_copy(update={"speculation": speculation})


def text_of(tokenizer: Tokenizer, task: Task, tokens: list[int]) -> str:
    """The text of `tokens` as a server sends it."""
    detokenizer = Detokenizer(tokenizer, task.prompt.tokens)
    pushed = detokenizer.push(tokens, [False] * len(tokens))
    return pushed.text + detokenizer.finish().text


def _phases(before: TargetTimes, now: TargetTimes) -> Phases:
    return Phases(
        steps=now.steps - before.steps,
        query=(now.query - before.query) / 1e6,
        forward=(now.forward - before.forward) / 1e6,
        verify=(now.verify - before.verify) / 1e6,
    )


@contextmanager
def _home(settings: Settings) -> Iterator[tuple[Pool, Settings]]:
    """A pool in a folder of its own, for a process has but one in a place, and the settings that
    lead there."""
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
            raise DraftProcessError("the draft process ended while it started; see above") from None

    def stop(self) -> None:
        with suppress(BrokenPipeError):  # it ended by itself
            self._ours.send(None)
        self._process.join()


def _run_draft(settings: Settings, parent: int, key: str, parents: Connection) -> None:
    # A Ctrl-C is for the parent, which ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whoever finds us hanging may ask where.
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

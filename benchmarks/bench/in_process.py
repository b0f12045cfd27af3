"""Both loops without a server: the target in this process, the draft beside it or here too.

Autoregressive and CARD run as in production, one process per model. Draft-then-verify gets what
suits it best: one process whose cores all belong to whichever model runs.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from bench.measurement import Measurement, Phases, Task
from card.cache import Decoding, EngineState, Finish, Pool, SlotRequest
from card.decoding import TargetLoop, TargetTimes, choose_rows
from card.drafting import DraftLoop
from card.engines.torch.calibration import measure_row_costs
from card.engines.torch.loading import load_torch_engine
from card.sampling import SamplingParameters
from card.serving.engine_process import DRAFT_NICENESS, EngineProcess
from card.serving.geometry import pool_geometry
from card.settings import Settings
from card.text import Detokenizer

_START_TIMEOUT_S = 120.0


class DraftProcessError(RuntimeError):
    """The draft's process did not start; the message says why."""


def parameters_of(task: Task) -> SamplingParameters:
    """The task's parameters as they arrive on the wire, where the temperature has 32 bits.

    No token ends a text: every completion has the same number of tokens.
    """
    return SamplingParameters(
        temperature=float(np.float32(task.temperature)), seed=task.seed, end_id=None
    )


class Loops:
    """A pool and its target loop; the draft's loop too where it has no process of its own."""

    def __init__(
        self,
        pool: Pool,
        tokenizer: Tokenizer,
        target: TargetLoop,
        draft: DraftLoop | None = None,
    ) -> None:
        self._pool = pool
        self._tokenizer = tokenizer
        self._target = target
        self._draft = draft

    def complete(
        self, task: Task, decoding: Decoding, *, threads: int, gamma: int = 1
    ) -> Measurement:
        """Decode one text with `threads` threads for whichever model runs here."""
        torch.set_num_threads(threads)
        prompt = np.array(task.prompt.tokens, np.int64)
        request = SlotRequest(prompt, task.max_tokens, decoding, parameters_of(task), gamma)
        slot, generation = self._pool.card_slot(0), self._pool.new_generation()
        if self._draft is not None:
            self._pool.beat("draft", EngineState.ATTACHED)
        times, idle_ns = self._target.times, self._draft_idle_ns()
        before = replace(times)
        started = time.perf_counter()
        slot.open(request, generation)
        while not slot.committed(generation) and slot.finish(generation) is Finish.RUNNING:
            self._step()
        first_token_s = time.perf_counter() - started
        prefilled = replace(times)
        while slot.finish(generation) is Finish.RUNNING:
            self._step()
        seconds = time.perf_counter() - started
        if slot.finish(generation) is not Finish.LENGTH:
            raise RuntimeError(f"prompt {task.prompt.id}: the target gave up on the text")
        tokens = slot.output(0, slot.committed(generation)).tolist()
        counters = slot.counters()
        idle_ns = self._draft_idle_ns() - idle_ns
        slot.close()
        while not slot.reclaim():
            self._step()
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
            draft_idle_s=idle_ns / 1e9,
            target_wait_s=(times.waiting - before.waiting) / 1e9,
            phases=_phases(prefilled, times),
        )

    def _step(self) -> None:
        if self._draft is not None:
            self._draft.step()
        self._target.step()

    def _draft_idle_ns(self) -> int:
        if self._draft is not None:
            return self._draft.times.idle
        return int(self._pool.header["draft_waiting_ns"][0])


class InProcess:
    """The pair as this process runs it. `rows` of a target pass are the same everywhere."""

    def __init__(self, settings: Settings, tokenizer: Tokenizer) -> None:
        self.target = load_torch_engine(settings, "target")
        self.draft = load_torch_engine(settings, "draft")
        rows = settings.speculation.rows
        self.rows = choose_rows(self.target.row_costs_ms) if rows == "auto" else rows
        self.dtype = str(self.target.dtype).removeprefix("torch.")
        self.settings = with_speculation(settings, rows=self.rows)
        self._tokenizer = tokenizer

    @contextmanager
    def beside(self) -> Iterator[Loops]:
        """Autoregressive and CARD: the draft in a process of its own."""
        with _pool(self.settings, self.settings.cache.directory) as pool:
            draft = _DraftProcess(self.settings, pool.new_key())
            try:
                yield Loops(pool, self._tokenizer, TargetLoop(self.target, pool, self.settings))
            finally:
                draft.stop()

    @contextmanager
    def alternating(self) -> Iterator[Callable[[int, int], Loops]]:
        """Draft-then-verify: both models here. Yields what makes the loops of a (γ, width)."""
        directory = self.settings.cache.directory
        # A folder of its own: the process has a pool in the usual place already.
        with (
            tempfile.TemporaryDirectory(prefix="card-bench-", dir=directory) as home,
            _pool(self.settings, Path(home)) as pool,
        ):
            yield lambda gamma, width: self._alternating(pool, gamma, width)

    def _alternating(self, pool: Pool, gamma: int, width: int) -> Loops:
        settings = with_speculation(self.settings, rows=max(gamma + 1, self.rows), width=width)
        # The draft beats once per text, from this thread.
        patient = settings.serving.model_copy(update={"engine_timeout_s": _START_TIMEOUT_S})
        settings = settings.model_copy(update={"serving": patient})
        target = TargetLoop(self.target, pool, settings)
        return Loops(pool, self._tokenizer, target, DraftLoop(self.draft, pool, settings))

    def row_costs_ms(self, threads: int) -> dict[int, float]:
        """Milliseconds of a target pass by its rows, measured now while no draft runs."""
        torch.set_num_threads(threads)
        return measure_row_costs(self.target)


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
        walk=(now.walk - before.walk) / 1e6,
    )


@contextmanager
def _pool(settings: Settings, directory: Path) -> Iterator[Pool]:
    pool = Pool.create(directory, os.getpid(), pool_geometry(settings))
    try:
        yield pool
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
        theirs.close()
        if not self._ours.poll(_START_TIMEOUT_S):
            self._process.kill()
            raise DraftProcessError(
                f"the draft process did not start within {_START_TIMEOUT_S:.0f} s; "
                "is the machine busy with something else?"
            )
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
    os.nice(DRAFT_NICENESS)
    engine = load_torch_engine(settings, "draft")
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
    with suppress(EOFError):  # the parent died
        parents.recv()
    process.stop()

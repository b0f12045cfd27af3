"""Both loops without a server: the target in this process, the draft beside it or here too.

Autoregressive decoding and CARD run as in production, one process per model. Draft-then-verify
gets what suits it best: one process, where the model that runs has all cores.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from bench.engines import START_TIMEOUT_S, Engines, draft_process, let_torch_use
from bench.measurement import Measurement, Task, draft_counts, slot_counts
from card.cache import CardSlot, EngineState, Finish, Pool, SlotRequest
from card.decoding import TargetLoop, TargetTimes
from card.drafting import DraftLoop, make_drafters
from card.engines.calibration import ConfigurableEngine
from card.engines.interface import CostCurve, chain_tokens
from card.sampling import SamplingParameters
from card.serving.geometry import pool_geometry
from card.settings import Settings
from card.speculation.control.measured import AGREEMENT
from card.speculation.pacing import PACINGS
from card.text import Detokenizer


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
        trace=task.trace,
    )


@dataclass
class Text:
    """One text of a run.

    begun_s    seconds since the run began
    commits    seconds since the run began, and how many tokens came
    prefilled  what the target's loop had spent when the first token came
    tokens     ids, when the text has ended
    """

    begun_s: float
    commits: list[tuple[float, int]] = field(default_factory=list)
    committed: int = 0
    prefilled: TargetTimes = field(default_factory=TargetTimes)
    tokens: tuple[int, ...] = ()


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
        """Step the loops on `threads` threads from now on."""
        # In draft-then-verify both models have so many threads; otherwise the target takes the
        # cores of a draft that is stopped or not there.
        pacing = PACINGS[decoding]
        self._target = self._target_on(threads, pacing.parallel or not pacing.queries)
        if self._draft_on is not None:
            self._draft = self._draft_on(threads)
        let_torch_use(threads)

    def announce(self) -> None:
        """Write the draft's heartbeats, if it runs in this process."""
        if self._draft is not None:
            self.pool.beat("draft", EngineState.ATTACHED)

    @property
    def times(self) -> TargetTimes:
        """The time that the target's loop has spent so far."""
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
        drafted = draft_counts(self.pool)
        (text,), counts = self.write([task], 1, decoding, gamma, acceptance)
        counts.update(draft_counts(self.pool, drafted))
        counts["later_steps"] = self.times.steps - text.prefilled.steps
        for phase in ("query", "forward", "verify"):
            counts[f"{phase}_ns"] = getattr(self.times, phase) - getattr(text.prefilled, phase)
        tokens, first_token_s = list(text.tokens), text.commits[0][0]
        said = text_of(self._tokenizer, task, tokens)
        return Measurement(
            said, text.tokens, len(tokens), text.commits[-1][0], first_token_s, counts
        )

    def write(
        self,
        tasks: Sequence[Task],
        number: int,
        decoding: str,
        gamma: int = 1,
        acceptance: str = "exact",
    ) -> tuple[list[Text], Counter[str]]:
        """All tasks, `number` at once: where a text ends, the next one begins. Call `use` before.

        Returns the texts, and what their slots counted together.
        """
        self.announce()
        free = [self.pool.card_slot(index) for index in range(number)]
        texts: list[Text] = []
        opened: list[tuple[CardSlot, int, Text]] = []
        closed: list[CardSlot] = []
        counts = Counter[str]()
        started = time.perf_counter()
        while len(texts) < len(tasks) or opened or closed:
            while free and len(texts) < len(tasks):
                slot, session_id = free.pop(), self.pool.new_session_id()
                request = slot_request(tasks[len(texts)], decoding, gamma, acceptance)
                texts.append(Text(time.perf_counter() - started))
                slot.open(request, session_id)
                opened.append((slot, session_id, texts[-1]))
            self.step()
            now = time.perf_counter() - started
            for stream in list(opened):
                slot, session_id, text = stream
                finish, committed = slot.finish(session_id), slot.committed(session_id)
                if committed > text.committed:
                    if not text.commits:
                        text.prefilled = replace(self.times)
                    text.commits.append((now, committed - text.committed))
                    text.committed = committed
                if finish is Finish.RUNNING:
                    continue
                if finish is not Finish.LENGTH:
                    raise RuntimeError("the target gave up on a text")
                text.tokens = tuple(slot.output(0, committed).tolist())
                counts.update(slot_counts(slot.counters()))
                slot.close()
                opened.remove(stream)
                closed.append(slot)
            for slot in list(closed):
                if slot.reclaim():
                    closed.remove(slot)
                    free.append(slot)
        return texts, counts

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
        """The target's engine as it serves."""
        return self.engines.on("target", self.settings.target.threads, spreads=True)

    def rows_for(self, candidates: int) -> int:
        """`rows`; if they are fixed, enough rows to verify these candidates."""
        return self.rows if self.rows_adapt else max(candidates + 1, self.rows)

    def room_for(self, candidates: int, width: int) -> dict[str, Any]:
        """The changed settings of a pacing that waits for this number of candidates."""
        return {"width": width, "rows": "auto" if self.rows_adapt else self.rows_for(candidates)}

    @contextmanager
    def beside(self, **speculation: Any) -> Iterator[Loops]:
        """Autoregressive, PEARL and CARD: the draft, if there is one, in a process of its own.

        speculation  what differs from the settings
        """
        settings = with_speculation(self.settings, **speculation)
        with own_pool(settings) as (pool, settings):

            def target_on(threads: int, spreads: bool) -> TargetLoop:
                engine = self.engines.on("target", threads, spreads=spreads)
                return TargetLoop(engine, pool, settings)

            drafts = "draft" in settings.roles
            with draft_process(settings, pool.new_key()) if drafts else nullcontext():
                yield Loops(pool, self._tokenizer, target_on)

    @contextmanager
    def alternating(self, **speculation: Any) -> Iterator[Callable[[int, int], Loops]]:
        """Draft-then-verify: both models here. Yields what makes the loops of a (γ, width).

        speculation  what differs from the settings, and from what a (γ, width) changes of them
        """
        # The draft beats once a text, from this thread.
        patient = self.settings.serving.model_copy(update={"engine_timeout_s": START_TIMEOUT_S})
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

        with own_pool(self.settings) as (pool, _):
            yield loops_of


def best_rows(costs_ms: Mapping[int, float]) -> int:
    """Rows that a session begins with, if it has the passes to itself."""
    curve = CostCurve(costs_ms)
    return max(curve.choices, key=lambda rows: chain_tokens(rows, AGREEMENT) / curve.pass_ms(rows))


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
def own_pool(settings: Settings) -> Iterator[tuple[Pool, Settings]]:
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

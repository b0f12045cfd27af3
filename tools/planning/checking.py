"""Predicts what a benchmark measured, from its step costs and the pair's foresight.

What goes in: the cost curve of a target pass, the milliseconds of the phases of a step, of a draft
pass and to the first token, as the result holds them, for how long the draft was stopped, and its
foresight of these texts. What comes out, and is compared: tokens per second and tokens per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

from bench.systems import DEVICE_DELAY_S
from card.speculation.control import ControlConfig
from card.speculation.control.measured import Measured
from card.speculation.drafters.growth import GROWTHS
from card.speculation.pacing import PACINGS
from card.speculation.sources import WITHOUT_DRAFT
from planning.acceptance import Foresight
from planning.candidates import Text
from planning.costs import MeasuredCost
from planning.errors import PlanError
from planning.results import MeasuredRow, Result
from planning.scenario import Delays, Machinery, Run, Speculation
from planning.simulation import simulate

BUS_MS = 0.01
"""Until one process sees what another wrote into shared memory: a store and a load."""

WAKE_MS = 0.5
"""Until an idle loop looks again: half of the millisecond that it waits at most."""

SERVER_MS = 3.5
"""Until a server has put what a device sent into the pool, or a commit on its way to the device:
half of what both take, by the clocks of the device and of the target's steps (`return_trace`)."""

_ROUNDS = 7
"""Simulations until passes cost what they did in the run: each halves what contention may be."""

_MOST_CONTENTION = 2.0
"""How much longer the draft at work makes a pass of the target, at most: as if both took turns. At
least the inverse, where cost curves flatter a pass with all cores as much."""

_TEXTS_SIMULATED, _FEWEST_REPETITIONS = 240, 8
"""All texts are simulated again and again, with other draws off their paths: whether a draft stops
may hang on one of them, and what the first texts teach decides for those behind."""


@dataclass(frozen=True)
class Comparison:
    """A measured row and what the simulation says of it.

    measured, predicted  tokens per second of all texts together; where they are `medians`, which
                         is where the result does not tell its steps (gRPC), over texts
    predicted_median     median over texts, to be held against the row's `tokens_per_s`
    draft_from           where the cost of a draft pass was taken from
    assumed              what of the system the simulation does not know, and what it takes instead
    """

    row: MeasuredRow
    measured: float
    predicted: float
    medians: bool
    predicted_median: float
    tokens_per_step: float
    target_ms: float
    draft_ms: float | None
    draft_from: str | None
    assumed: Sequence[str] = ()

    @property
    def error(self) -> float:
        """Of tokens per second, relative to the measured."""
        return self.predicted / self.measured - 1.0

    @property
    def decides(self) -> bool:
        """Whether the model knows all that shares the cores: not of a server's processes."""
        return self.row.where == "in_process"


def compare(
    result: Result,
    row: MeasuredRow,
    foresight: Foresight,
    seed: int = 0,
    repetitions: int | None = None,
) -> Comparison:
    """Simulate one row of a result on the texts it was measured with.

    `repetitions` says how often, where the draft may stop; None: as often as `_TEXTS_SIMULATED`
    texts ask for.

    Raises:
        PlanError: the result lacks a step cost that this row needs.
    """
    measured = foresight.limited(result.texts, result.max_tokens)
    if row.built is not None and row.built.on_a_device:
        measured = measured.of_a_device()
    texts = [Text(record, measured) for record in measured.texts]
    return _Replay(result, row, texts, seed, repetitions).compare()


class _Replay:
    def __init__(
        self,
        result: Result,
        row: MeasuredRow,
        texts: list[Text],
        seed: int,
        repetitions: int | None = None,
    ) -> None:
        if row.pacing is None:
            raise PlanError(f"{row.system} is no pacing of this engine")
        self.result = result
        self.row = row
        assert row.built is not None
        self.system = row.built
        self.pacing = row.pacing
        self.way = PACINGS[self.pacing]
        # The system's own choices, else those of the settings.
        self.config = result.settings.speculation.model_copy(update=dict(self.system.speculation))
        self.texts = texts
        self.seed = seed
        self.repetitions = repetitions or max(_FEWEST_REPETITIONS, _TEXTS_SIMULATED // len(texts))
        self.phases = row if row.forward_ms is not None else result.beside(row, row.pacing)
        self.adapts = self._rows_adapt()
        self.may_stop = self.way.adapts and self.adapts and row.drafts

    def compare(self) -> Comparison:
        draft_ms, draft_from = self._draft_ms()
        factor, contention, least, most = 1.0, 1.0, 1.0 / _MOST_CONTENTION, _MOST_CONTENTION
        stopped = self.phases.draft_idle_share if self.may_stop else None
        runs: list[Run] = []
        for number in range(_ROUNDS):
            if stopped is not None:
                contention = sqrt(least * most)
            runs = self._simulate(factor, contention, draft_ms or 0.0)
            # Half way, but at first: what passes cost decides whose draft stops, and back again.
            found = self._factor(runs, contention)
            factor = found if number == 0 else (factor + found) / 2
            # The dearer a pass beside the draft, the longer the controller stops it.
            if stopped is not None and self._stopped_share(runs) < stopped:
                least = contention
            else:
                most = contention
        steps = sum(run.steps for run in runs)
        tokens = sum(run.tokens for run in runs)
        middle = median(run.tokens_per_s for run in runs)
        overall = self.row.overall_tokens_per_s(self.result.max_tokens)
        return Comparison(
            row=self.row,
            measured=overall or self.row.tokens_per_s,
            predicted=1e3 * tokens / sum(run.ms for run in runs) if overall else middle,
            medians=overall is None,
            predicted_median=middle,
            # The benchmark counts the pass that gave the first token.
            tokens_per_step=tokens / (steps + len(runs)),
            target_ms=sum(run.target_busy_ms for run in runs) / steps,
            draft_ms=draft_ms,
            draft_from=draft_from,
            assumed=self._assumed(),
        )

    def _assumed(self) -> list[str]:
        found = []
        if GROWTHS[self._growth()].shares:
            found.append("no nodes end alike, for a profile holds no tokens")
        if self.config.proposals != WITHOUT_DRAFT[0]:
            found.append(f"{self.config.proposals} were proposals of {WITHOUT_DRAFT[0]}")
        if not self.system.lossless:
            found.append("no token is kept that is not the target's")
        return found

    def _simulate(self, factor: float, contention: float, draft_ms: float) -> list[Run]:
        around_ms = self.phases.around_ms or 0.0
        alone = MeasuredCost(self._curve_alone(), factor, around_ms)
        machinery = Machinery(
            target=MeasuredCost(self._curve(self.phases), factor * contention, around_ms),
            target_alone=alone if self.way.adapts or self.system.on_a_device else None,
            draft=MeasuredCost({1: draft_ms}),
            delays=self._delays(),
            prefill_ms=self.phases.time_to_first_token_ms,
        )
        config, runs = self._speculation(), list[Run]()
        for number in range(self.repetitions if self.may_stop else 1):
            control, first = self._control(), self.seed + number * len(self.texts)
            runs += [
                simulate(text, self.pacing, config, machinery, seed, control)
                for seed, text in enumerate(self.texts, first)
            ]
        return runs

    def _stopped_share(self, runs: list[Run]) -> float:
        """Share of all time in which the draft neither waited for the first token nor worked."""
        waited = self.phases.time_to_first_token_ms * len(runs)
        ms = sum(run.ms for run in runs)
        return (ms - waited - sum(run.draft_busy_ms for run in runs)) / ms

    def _speculation(self) -> Speculation:
        config, row = self.config, self.row
        return Speculation(
            width=1 if self.system.on_a_device else row.width or config.width,
            depth=config.depth,
            rows=row.rows if config.rows == "auto" else config.rows,
            ngram_tokens=config.ngram_tokens,
            num_draft_tokens=row.gamma or 1,
            growth=self._growth(),
            nodes=self.result.settings.cache.nodes,
            growth_config=config.growth_config,
            drafter=row.drafter,
            parcel=config.parcel,
            is_remote=self.system.on_a_device,
        )

    def _growth(self) -> str:
        """The system's own rule, else that of its pacing, else that of the settings."""
        named = self.system.speculation.get("growth") or self.way.growth
        return named or self.config.growth

    def _rows_adapt(self) -> bool:
        if "rows" in self.system.speculation or self.row.rows_adapt is False:
            return False
        # In older results those that wait for the draft had a fixed number in process.
        fixed = self.row.waits_for_draft and self.row.where == "in_process"
        return self.row.rows_adapt or (self.config.rows == "auto" and not fixed)

    def _control(self) -> Measured | None:
        """What decided in the run; None: the rows of its passes were fixed."""
        if not self.adapts:
            return None
        costs_ms, share = self.result.target_row_costs_ms, self.result.target_alone_share
        if costs_ms is None:
            costs_ms, alone = self._curve(self.phases), self._curve_alone()
            share = min(1.0, alone[1] / costs_ms[1])
        return Measured(
            ControlConfig(
                ngram_tokens=self.config.ngram_tokens, costs_ms=costs_ms, alone_share=share
            )
        )

    def _delays(self) -> Delays:
        served = self.row.where != "in_process"
        bus = 1e3 * DEVICE_DELAY_S + SERVER_MS if self.system.on_a_device else BUS_MS
        if not self.way.parallel and not served:
            return Delays()  # one process runs both loops in turn
        stream = self.row.time_to_first_token_ms - self.phases.time_to_first_token_ms
        return Delays(bus=bus, wake=WAKE_MS, stream=max(0.0, stream) if served else 0.0)

    def _curve_alone(self) -> dict[int, float]:
        """Of a target that has all cores, while the draft is stopped."""
        curves = self.result.row_costs_ms
        return curves[max(curves)]

    def _curve(self, row: MeasuredRow) -> dict[int, float]:
        curves = self.result.row_costs_ms
        if row.threads not in curves:
            raise PlanError(f"the result has no cost curve of {row.threads} threads")
        return curves[row.threads]

    def _factor(self, runs: list[Run], contention: float) -> float:
        """By how much a pass was slower in the run than the cost curves say of its rows, and
        contention of those beside the draft."""
        assert self.phases.forward_ms is not None
        beside = MeasuredCost(self._curve(self.phases), contention)
        alone = MeasuredCost(self._curve_alone())
        passes = [beside.ms(rows) for run in runs for rows in run.rows_of_steps]
        passes += [alone.ms(rows) for run in runs for rows in run.rows_alone]
        return self.phases.forward_ms * len(passes) / sum(passes)

    def _draft_ms(self) -> tuple[float | None, str | None]:
        """Milliseconds of a draft pass in this run, and where that was taken from."""
        if not self.row.drafts:
            return None, None
        if self.row.draft_ms_per_pass is not None:
            return self.row.draft_ms_per_pass, "measured in this row"
        if self.phases.draft_ms_per_pass is not None:
            return self.phases.draft_ms_per_pass, "measured in process"
        for other in self.result.rows:  # this one's was stopped all the time
            if other.temperature == self.row.temperature and other.draft_ms_per_pass is not None:
                return other.draft_ms_per_pass, f"measured with {other.system}"
        raise PlanError(
            f"the result tells no draft_ms_per_pass of {self.row.system}: measure again"
        )

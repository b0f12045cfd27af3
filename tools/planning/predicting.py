"""Predicts every pacing for a placement, and recommends width, depth and rows for CARD."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from card.speculation.pacing import PACINGS, PLAIN
from planning.acceptance import Foresight, Likeness
from planning.candidates import Text
from planning.hardware import Scene
from planning.scenario import Delays, Machinery, Pacing, Run, Speculation
from planning.simulation import simulate

ALONE = Speculation(rows=1)
"""The settings of a target that has no candidates."""

TEXTS = 3
TOKENS = 256

_NOTICEABLE = 0.01
"""A smaller setting is recommended unless a larger one is faster by more than this."""


@dataclass(frozen=True)
class Grid:
    """The settings among which the best are looked for."""

    widths: tuple[int, ...] = (1, 2, 4, 8, 16)
    depths: tuple[int, ...] = (8, 16, 32)
    rows: tuple[int, ...] = (4, 6, 8, 12, 16, 24)
    gammas: tuple[int, ...] = (2, 3, 4, 6, 8, 10, 12, 16)


@dataclass(frozen=True)
class Outcome:
    """What is predicted of one pacing at one agreement.

    speed_up  tokens per second relative to autoregressive decoding in the same place
    """

    pacing: Pacing
    agreement: float
    config: Speculation
    tokens_per_s: float
    tokens_per_step: float
    speed_up: float
    target_ms: float
    draft_ms: float | None


@dataclass(frozen=True)
class Prediction:
    """All pacings of one placement, each at its best settings at every agreement."""

    scene: Scene
    outcomes: list[Outcome]

    def of(self, pacing: Pacing, agreement: float) -> Outcome:
        return next(o for o in self.outcomes if (o.pacing, o.agreement) == (pacing, agreement))


def predict(
    scene: Scene,
    likeness: Likeness,
    agreements: Sequence[float],
    seed: int = 0,
    on_agreement: Callable[[], None] = lambda: None,
    grid: Grid = Grid(),
    pacings: Sequence[Pacing] = tuple(PACINGS),
) -> Prediction:
    """Simulate each pacing at its best setting; the same seed gives the same figures."""
    outcomes: list[Outcome] = []
    for agreement in agreements:
        drawn = likeness.draw(agreement, TEXTS, TOKENS, seed)
        outcomes += _Trial(scene, drawn, agreement, seed, grid).outcomes(pacings)
        on_agreement()
    return Prediction(scene, outcomes)


@dataclass
class _Total:
    """Several texts together."""

    runs: list[Run]

    @property
    def speed(self) -> float:
        return 1e3 * sum(run.tokens for run in self.runs) / sum(run.ms for run in self.runs)


class _Trial:
    """One placement at one agreement."""

    def __init__(
        self, scene: Scene, foresight: Foresight, agreement: float, seed: int, grid: Grid
    ) -> None:
        self._grid = grid
        self._agreement = agreement
        self._seed = seed
        self._texts = [
            Text(record.model_copy(update={"prompt_tokens": scene.preset.context}), foresight)
            for record in foresight.texts
        ]
        delays = Delays(bus=scene.preset.bus_ms, wake=scene.preset.wake_ms)
        self._machinery = Machinery(scene.target, scene.draft, delays)
        self._tried: dict[tuple[Pacing, Speculation], _Total] = {}

    def outcomes(self, pacings: Sequence[Pacing]) -> list[Outcome]:
        alone = self._run(PLAIN, ALONE)
        return [self._outcome(pacing, self._settings(pacing), alone.speed) for pacing in pacings]

    def _settings(self, pacing: Pacing) -> Speculation:
        if not PACINGS[pacing].queries:
            return ALONE
        if PACINGS[pacing].waits:
            found = self._best(pacing, [self._chain(gamma, pacing) for gamma in self._grid.gammas])
            if PACINGS[pacing].growth is None:
                return found
            return self._best(pacing, [replace(found, width=width) for width in self._grid.widths])
        return self._recommend(pacing)

    def _chain(self, gamma: int, pacing: Pacing) -> Speculation:
        """A chain of γ, what the papers of the pacings that wait describe; or what the pacing's own
        growth rule hangs beside it."""
        growth = PACINGS[pacing].growth
        return Speculation(
            width=1 if growth is None else self._grid.widths[-1],
            depth=2 * gamma + 1,
            rows=max(2, PACINGS[pacing].chunk(gamma) + 1),
            num_draft_tokens=gamma,
            growth=growth or "layered",
        )

    def _recommend(self, pacing: Pacing) -> Speculation:
        """The best rows, width and depth one after the other, and the rows again."""
        config = Speculation(width=4, depth=32, rows=12)
        grid = self._grid
        config = self._best(pacing, [replace(config, rows=rows) for rows in grid.rows])
        config = self._best(pacing, [replace(config, width=width) for width in grid.widths])
        config = self._best(pacing, [replace(config, depth=depth) for depth in grid.depths])
        return self._best(pacing, [replace(config, rows=rows) for rows in grid.rows])

    def _best(self, pacing: Pacing, settings: Sequence[Speculation]) -> Speculation:
        """The first of the ascending settings that no other beats noticeably."""
        speeds = [self._run(pacing, config).speed for config in settings]
        enough = max(speeds) / (1 + _NOTICEABLE)
        return next(
            config for config, speed in zip(settings, speeds, strict=True) if speed >= enough
        )

    def _run(self, pacing: Pacing, config: Speculation) -> _Total:
        if (pacing, config) not in self._tried:
            self._tried[pacing, config] = _Total(
                [
                    simulate(text, pacing, config, self._machinery, self._seed + number)
                    for number, text in enumerate(self._texts)
                ]
            )
        return self._tried[pacing, config]

    def _outcome(self, pacing: Pacing, config: Speculation, alone: float) -> Outcome:
        total = self._run(pacing, config)
        steps = sum(run.steps for run in total.runs)
        passes = sum(run.draft_passes for run in total.runs)
        return Outcome(
            pacing=pacing,
            agreement=self._agreement,
            config=config,
            tokens_per_s=total.speed,
            tokens_per_step=sum(run.tokens - 1 for run in total.runs) / steps,
            speed_up=total.speed / alone,
            target_ms=sum(run.target_busy_ms for run in total.runs) / steps,
            draft_ms=sum(run.draft_busy_ms for run in total.runs) / passes if passes else None,
        )

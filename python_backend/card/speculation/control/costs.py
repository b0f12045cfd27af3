"""What a pass of the target costs: believed from load at first, then as the passes that serve show.

Load times passes in a second that something else may disturb, so its curve is only a belief. Each
pass that serves says by which factor its cell differs from it. A cell is a number of rows, alone or
beside a working draft, of a number of sessions. The factor of a cell is the mean of all that were
seen, weighted by how many passes showed them (at most `MOST`, halved every `HALF_LIFE` passes) and
by how near they are: a cell of twice or half the rows counts `NEAR`, one beside the draft instead
of alone, or of another number of sessions, `OTHER`. So one pass corrects its neighbours until they
are seen themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import NamedTuple

from card.engines.row_costs import CostCurve

CONTENTION = 1.2
"""How much longer a pass takes beside a working draft, until one was seen."""
MOST = 24.0
"""Passes: their mean follows the machine within a second, and one outlier moves it by 4 %."""
HALF_LIFE = 192.0
"""Passes after which what was not seen again counts half: the machine may have changed."""
NEAR, OTHER = 1 / 128, 1 / 32
BELIEF = 1e-6
"""Passes that the belief counts for: none, as soon as one was seen anywhere."""
OUTLIER = 2.0
"""A pass counts at most so many times what was expected: the machine interrupted it."""
REFRESH = 16
"""Passes between two reckonings of all cells: these passes change little."""
NEW = 3
"""Passes of a cell after each of which all cells are reckoned anew."""


class Cell(NamedTuple):
    beside: bool
    sessions: int
    rows: int


@dataclass(slots=True)
class _Seen:
    """Mean factor of a cell's passes, their number, and which of all passes was the last."""

    factor: float = 1.0
    count: float = 0.0
    at: int = 0


def size_of(sessions: int) -> int:
    """Numbers of sessions that are alike: 1, 2, 3 to 4, 5 to 8, 9 to 16, ..."""
    return (sessions - 1).bit_length()


class PassCosts:
    """Milliseconds of passes.

    curve   what load measured of passes alone on the cores that a draft leaves, by rows
    shares  what passes take of that alone on all cores (False), and beside a working draft (True)
    """

    def __init__(self, curve: CostCurve, shares: Mapping[bool, float]) -> None:
        self._curve, self._shares = curve, shares
        self._seen: dict[Cell, _Seen] = {}
        self._known: dict[Cell, float] = {}
        self._passes = 0

    def ms(self, rows: int, sessions: int, *, beside: bool) -> float:
        """Of a pass of so many rows, of all its sessions together."""
        cell = Cell(beside, size_of(sessions), self._curve.padded(rows))
        if cell not in self._known:
            # Fewer rows never cost more: else a cell that load thought too dear is never tried.
            larger = [
                self._believed_ms(other) * seen.factor
                for other, seen in self._seen.items()
                if other[:2] == cell[:2] and other.rows > cell.rows and self._fresh(seen) > 1
            ]
            self._known[cell] = min([self._believed_ms(cell) * self._factor(cell), *larger])
        return self._known[cell]

    def best_rows(self, worth: Sequence[float], sessions: int, *, beside: bool) -> int:
        """How many candidates to verify for most tokens per millisecond.

        worth  [candidates] chance that each is accepted, best first
        """
        return self._curve.best_rows(
            worth, sessions, lambda rows: self.ms(rows, sessions, beside=beside)
        )

    def least_chance(self, sessions: int, *, beside: bool) -> float:
        """Chance below which a candidate is not worth its row, whatever others there are."""
        plain_ms = self.ms(sessions, sessions, beside=beside)
        chances = (
            (self.ms(rows, sessions, beside=beside) / plain_ms - 1) * sessions / (rows - sessions)
            for rows in self._curve.numbers
            if rows > sessions
        )
        return min(chances, default=0.0)

    def learn(self, rows: int, sessions: int, ms: float, *, beside: bool) -> float:
        """A pass took so long. Returns the milliseconds that it counts for."""
        cell = Cell(beside, size_of(sessions), self._curve.padded(rows))
        seen = self._seen.setdefault(cell, _Seen())
        if seen.count:
            ms = min(ms, OUTLIER * self.ms(rows, sessions, beside=beside))
        seen.count = min(self._fresh(seen) + 1, MOST)
        seen.factor += (ms / self._believed_ms(cell) - seen.factor) / seen.count
        seen.at = self._passes
        self._passes += 1
        if self._passes % REFRESH == 0 or seen.count <= NEW:
            self._known.clear()
        return ms

    def _factor(self, cell: Cell) -> float:
        total = weight = BELIEF
        for other, seen in self._seen.items():
            near = NEAR ** abs(log2(other.rows / cell.rows)) * self._fresh(seen)
            near *= OTHER ** ((other.beside != cell.beside) + (other.sessions != cell.sessions))
            total += near * seen.factor
            weight += near
        return total / weight

    def _believed_ms(self, cell: Cell) -> float:
        return self._shares[cell.beside] * self._curve.pass_ms(cell.rows)

    def _fresh(self, seen: _Seen) -> float:
        return float(seen.count * 0.5 ** ((self._passes - seen.at) / HALF_LIFE))

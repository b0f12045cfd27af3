"""What passes cost: the measurements at load say so at first, then the passes that serve do.

A cell is a number of rows, alone or beside a working draft. Its factor is the mean of what its
latest passes took, divided by what load measured. An unknown cell takes the factor of the nearest
one.
"""

from __future__ import annotations

from math import log2
from typing import NamedTuple

from card.engines.interface import CostCurve

MEAN_OF = 24
"""Passes: their mean follows the machine within a second, and one outlier moves it by 4 %."""
FORGOTTEN = 256
"""Passes after which a cell that was not seen again is unknown: the machine may have changed."""
OUTLIER = 2.0
"""A pass counts at most so many times what was expected: the machine interrupted it."""
TRIED_ROWS = 2
"""Candidates more that a pass verifies while it is not known what they cost, and at least during a
trial: else this is never seen."""
PROBES, NEAR_ROWS = 3, 8
"""Passes by which the cost of more rows is known, as one may be interrupted; and rows that these
have more at most, unless the engine pads them further."""


class _Cell(NamedTuple):
    beside: bool
    rows: int

    def distance(self, other: _Cell) -> tuple[bool, float]:
        return self.beside != other.beside, abs(log2(self.rows / other.rows))


class PassCosts:
    """Milliseconds of passes.

    curve   what load measured of passes on the cores that a draft leaves, by rows
    shares  of that time: what a pass takes on all cores (False), and beside a working draft (True)
    """

    def __init__(self, curve: CostCurve, shares: tuple[float, float]) -> None:
        self._curve, self._shares, self._passes = curve, shares, 0
        self._seen: dict[_Cell, tuple[float, int, int]] = {}
        """Factor of each cell, passes in that mean, and which of all passes was the last."""

    def ms(self, rows: int, *, beside: bool) -> float:
        """Of a pass of so many rows, of all its sessions together."""
        cell, believed_ms = self._believed(rows, beside=beside)
        nearest = cell if cell in self._seen else min(self._seen, key=cell.distance, default=cell)
        return believed_ms * self._seen.get(nearest, (1.0,))[0]

    def learn(self, rows: int, ms: float, *, beside: bool) -> float:
        """A pass took so long. Returns the milliseconds that it counts for."""
        cell, believed_ms = self._believed(rows, beside=beside)
        factor, count, _ = self._seen.pop(cell, (1.0, 0, 0))
        ms = min(ms, OUTLIER * believed_ms * factor) if count else ms
        count, self._passes = min(count + 1, MEAN_OF), self._passes + 1
        self._seen[cell] = factor + (ms / believed_ms - factor) / count, count, self._passes
        oldest = next(iter(self._seen))  # each pass moves its cell to the end
        if self._seen[oldest][2] < self._passes - FORGOTTEN:
            del self._seen[oldest]
        return ms

    def knows_more_than(self, rows: int, *, beside: bool) -> bool:
        """Whether enough passes with some more rows were seen of late."""
        last = max(rows + NEAR_ROWS, self._curve.padded(rows + TRIED_ROWS))
        seen = (
            count
            for cell, (_, count, _) in self._seen.items()
            if cell.beside is beside and rows < cell.rows <= last
        )
        return sum(seen) >= PROBES

    def _believed(self, rows: int, *, beside: bool) -> tuple[_Cell, float]:
        cell = _Cell(beside, self._curve.padded(rows))
        return cell, self._shares[beside] * self._curve.pass_ms(cell.rows)

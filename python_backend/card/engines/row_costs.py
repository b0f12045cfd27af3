"""What a pass costs by its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

MOST_CHOSEN = 32
"""Rows of one session in a pass: more gain little where they are nearly free, and cost much where
they are not. What more cost is measured for passes that many sessions share."""


COSTED_ROWS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
"""Rows of passes that are measured where a pass takes as many as it needs."""


@dataclass(frozen=True, slots=True)
class RowCosts:
    """What a pass of one session costs on this machine.

    pass_ms      milliseconds by number of rows, of passes that follow one of the same number
    alone_share  share of its time that a pass of one row takes while no other model computes
    """

    pass_ms: dict[int, float]
    alone_share: float = 1.0


def pass_cost_ms(measured_ms: Mapping[int, float], rows: int) -> float:
    """Milliseconds of a pass of `rows`, between and beyond the numbers that were measured.

    Beyond the curve a row costs what it cost on average along it. Raises ValueError for an empty
    curve.
    """
    (first, first_ms), (last, last_ms) = min(measured_ms.items()), max(measured_ms.items())
    if rows <= last:
        known = sorted(measured_ms)
        return float(np.interp(rows, known, [measured_ms[number] for number in known]))
    slope_ms = (last_ms - first_ms) / max(1, last - first)
    return last_ms + max(0.0, slope_ms) * (rows - last)


class CostCurve:
    """`pass_cost_ms` of one curve, computed once for each number of rows.

    measured_ms  milliseconds of a pass by its rows; may be empty, then nothing may be asked
    """

    def __init__(self, measured_ms: Mapping[int, float]) -> None:
        self._measured_ms = dict(sorted(measured_ms.items()))
        self.numbers = list(self._measured_ms)
        self._known_ms: dict[int, float] = {}
        self._padded: dict[int, int] = {}
        for before, number in pairwise([0, *self.numbers]):
            self._padded |= dict.fromkeys(range(before + 1, number + 1), number)
        self.choices = [rows for rows in self.numbers if rows <= MOST_CHOSEN]

    def shared(self, sharing: int) -> CostCurve:
        """Of passes that so many sessions share, by the rows of each."""
        return CostCurve({rows: self.pass_ms(rows * sharing) for rows in self.choices})

    def pass_ms(self, rows: int) -> float:
        known = self._known_ms.get(rows)
        if known is None:
            known = self._known_ms[rows] = pass_cost_ms(self._measured_ms, rows)
        return known

    def padded(self, rows: int) -> int:
        """The least number that was measured and has room for so many; beyond them, the number
        itself."""
        return self._padded.get(rows, rows)

    def best_rows(
        self,
        worth: Sequence[float],
        given: int = 0,
        cost_ms: Callable[[int], float] | None = None,
    ) -> int:
        """How many rows to put into a pass for most per millisecond; all, where nothing was
        measured, or none is worth anything and the pass would be empty. A pass of rows between two
        numbers that were measured is padded to the greater. Beyond them, where very many sessions
        share it, there may be one more row for each that is given.

        worth  [rows] what each gives, in the order in which they are taken
        given  rows that are in it anyway and give one each
        cost_ms  of a pass of so many rows; None: `pass_ms`
        """
        cost_ms = cost_ms or self.pass_ms
        if not self._measured_ms:
            return len(worth)
        best, best_rate = 0 if given else len(worth), 0.0
        gives, at = float(given), 0
        for rows in self._numbers(given):
            more = min(rows - given, len(worth))
            gives += sum(worth[at:more])
            at = more
            rate = gives / cost_ms(rows)
            if rate > best_rate:
                best, best_rate = more, rate
            if at == len(worth):
                break
        return best

    def _numbers(self, given: int) -> Iterator[int]:
        """Of rows that a pass may have in which so many are."""
        yield from (rows for rows in self._measured_ms if rows >= given)
        last = max(self._measured_ms)
        yield from range(max(last, given - 1) + 1, 2 * given + 1)

"""The cost of a pass by its number of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

MOST_CHOSEN = 32
"""Most rows of one session in a pass: more rows gain little where they are nearly free, and cost
much where they are not. Passes of more rows are measured for many sessions that share a pass."""


COSTED_ROWS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
"""Numbers of rows to measure on an engine that does not pad passes."""


@dataclass(frozen=True, slots=True)
class RowCosts:
    """The measured cost of a pass of one session on this machine.

    pass_ms      milliseconds by number of rows, of passes that follow one of the same number
    alone_share  time of a one-row pass while no other model computes, as a share of its time
                 otherwise
    """

    pass_ms: dict[int, float]
    alone_share: float = 1.0


def pass_cost_ms(measured_ms: Mapping[int, float], rows: int) -> float:
    """Milliseconds of a pass of `rows`, interpolated from the measured numbers of rows.

    Beyond the curve a row costs the average of the curve. Raises ValueError for an empty curve.
    """
    (first, first_ms), (last, last_ms) = min(measured_ms.items()), max(measured_ms.items())
    if rows <= last:
        known = sorted(measured_ms)
        return float(np.interp(rows, known, [measured_ms[number] for number in known]))
    slope_ms = (last_ms - first_ms) / max(1, last - first)
    return last_ms + max(0.0, slope_ms) * (rows - last)


def chain_tokens(rows: float, chance: float) -> float:
    """Expected tokens of a chain of `rows` - 1 candidates behind the last committed token, each
    accepted with `chance`: (1 - chance^rows) / (1 - chance)."""
    return float(rows) if chance >= 1.0 else float((1.0 - chance**rows) / (1.0 - chance))


class CostCurve:
    """`pass_cost_ms` of one curve, computed once for each number of rows.

    measured_ms  milliseconds of a pass by its rows; an empty curve cannot be evaluated
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
        """The curve of passes shared by `sharing` sessions, by the rows of each."""
        return CostCurve({rows: self.pass_ms(rows * sharing) for rows in self.choices})

    def pass_ms(self, rows: int) -> float:
        known = self._known_ms.get(rows)
        if known is None:
            known = self._known_ms[rows] = pass_cost_ms(self._measured_ms, rows)
        return known

    def padded(self, rows: int) -> int:
        """The least measured number of rows that is not below `rows`; beyond all of them, `rows`
        itself."""
        return self._padded.get(rows, rows)

    def best_rows(
        self,
        worth: Sequence[float],
        given: int = 0,
        cost_ms: Callable[[int], float] | None = None,
    ) -> int:
        """Number of rows with the most gain per millisecond. All rows, if nothing was measured, or
        if no row gains anything and the pass would be empty.

        A pass is padded to the next measured number of rows. Beyond the measured numbers, with very
        many sessions in a pass, there may be one more row for each given row.

        worth    [rows] gain of each row, in the order in which rows are taken
        given    rows that the pass has anyway, with a gain of 1 each
        cost_ms  milliseconds of a pass by its rows; None: `pass_ms`
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
        """Numbers of rows that a pass with `given` rows may have."""
        yield from (rows for rows in self._measured_ms if rows >= given)
        last = max(self._measured_ms)
        yield from range(max(last, given - 1) + 1, 2 * given + 1)

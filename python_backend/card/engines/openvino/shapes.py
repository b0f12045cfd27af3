"""How many rows a pass is padded to: a graph that meets another shape than before prepares anew."""

from __future__ import annotations

import numpy as np

from card.engines.interface import RowCosts

_BUCKETS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 320)


class RowPadding:
    """Keeps the last shape as long as padding to it costs less than a change.

    Rows too many cost a little in every pass, a change costs a lot once. As in renting skis, the
    shape is changed when the rent paid since it last fitted reaches the price.
    """

    def __init__(self, costs: RowCosts | None) -> None:
        self._costs = costs
        self._curve = [] if costs is None else sorted(costs.pass_ms.items())
        self._rows = 0
        self._most_needed = 0
        self._overpaid_ms = 0.0

    def pad(self, needed: int) -> int:
        """Rows of a pass that needs so many."""
        fitting = _bucket(needed)
        if self._costs is None or fitting >= self._rows:
            return self._change(fitting)
        self._most_needed = max(self._most_needed, fitting)
        self._overpaid_ms += self._cost(self._rows) - self._cost(self._most_needed)
        if self._overpaid_ms > self._costs.change_ms:
            return self._change(self._most_needed)
        return self._rows

    def _change(self, rows: int) -> int:
        self._rows = rows
        self._most_needed = 0
        self._overpaid_ms = 0.0
        return rows

    def _cost(self, rows: int) -> float:
        known, costs = zip(*self._curve, strict=True)
        if rows <= known[-1]:
            return float(np.interp(rows, known, costs))
        return float(costs[-1] * rows / known[-1])


def _bucket(rows: int) -> int:
    return next((bucket for bucket in _BUCKETS if bucket >= rows), rows)

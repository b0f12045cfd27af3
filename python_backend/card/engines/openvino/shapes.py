"""How many rows a pass is padded to: a graph that meets another shape than before prepares anew."""

from __future__ import annotations

from typing import Protocol

from card.engines.row_costs import CostCurve, RowCosts

_BUCKETS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 320)


class Padding(Protocol):
    def pad(self, needed: int) -> int:
        """Rows of a pass that needs so many."""


class FixedRows:
    """A graph that takes so many rows and no others."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def pad(self, needed: int) -> int:
        return self.rows


class RowPadding:
    """Keeps the last shape as long as padding to it costs less than a change.

    Rows too many cost a little in every pass, a change costs a lot once. As in renting skis, the
    shape is changed when the rent paid since it last fitted reaches the price.
    """

    def __init__(self, costs: RowCosts | None) -> None:
        self._curve = None if costs is None else CostCurve(costs.pass_ms)
        self._change_ms = 0.0 if costs is None else costs.change_ms
        self._rows = 0
        self._most_needed = 0
        self._overpaid_ms = 0.0

    def pad(self, needed: int) -> int:
        fitting = _bucket(needed)
        curve = self._curve
        if curve is None or fitting >= self._rows:
            return self._change(fitting)
        self._most_needed = max(self._most_needed, fitting)
        self._overpaid_ms += curve.pass_ms(self._rows) - curve.pass_ms(self._most_needed)
        if self._overpaid_ms > self._change_ms:
            return self._change(self._most_needed)
        return self._rows

    def _change(self, rows: int) -> int:
        self._rows = rows
        self._most_needed = 0
        self._overpaid_ms = 0.0
        return rows


def _bucket(rows: int) -> int:
    return next((bucket for bucket in _BUCKETS if bucket >= rows), rows)

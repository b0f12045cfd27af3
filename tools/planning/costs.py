"""What a pass costs, as it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from card.engines.row_costs import pass_cost_ms
from planning.clock import Work


@dataclass(frozen=True)
class MeasuredCost:
    """Milliseconds of a pass by its rows, and what a loop does around every pass.

    curve   measured milliseconds by rows
    factor  by how much passes were slower in the run than alone on the machine
    around  milliseconds of query, verify and bookkeeping per pass

    The context's length is not in it: it is that of the measurement.
    """

    curve: Mapping[int, float]
    factor: float = 1.0
    around: float = 0.0

    def work(self, rows: int, context: int) -> Work:
        return Work(self.ms(rows) + self.around)

    def ms(self, rows: int) -> float:
        """Milliseconds of a bare pass."""
        return self.factor * pass_cost_ms(self.curve, rows)

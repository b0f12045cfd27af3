"""What a pass costs, as it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planning.clock import Work


@dataclass(frozen=True)
class MeasuredCost:
    """Milliseconds of a pass by its rows, and what a loop does around every pass.

    curve   measured milliseconds by rows; between them a line is drawn, beyond them the last
            slope goes on
    factor  by how much passes were slower in the run than alone on the machine
    around  milliseconds of query, walk and bookkeeping per pass

    The context's length is not in it: it is that of the measurement.
    """

    curve: Mapping[int, float]
    factor: float = 1.0
    around: float = 0.0

    def work(self, rows: int, context: int) -> Work:
        return Work(self.alone(rows) * self.factor + self.around)

    def alone(self, rows: int) -> float:
        """Milliseconds of a bare pass with nothing else running."""
        known = sorted(self.curve)
        values = [self.curve[row] for row in known]
        if rows <= known[-1] or len(known) == 1:
            return float(np.interp(rows, known, values))
        slope = (values[-1] - values[-2]) / (known[-1] - known[-2])
        return values[-1] + max(0.0, slope) * (rows - known[-1])

"""How many nodes a draft pass expands: what their rows cost against what they promise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from card.engines.row_costs import CostCurve


class Width:
    """Chooses the nodes of a pass that give most for its time.

    A node is worth as much as the chance that the target comes by it, the chance of its path: what
    a pass gives is the sum over its nodes. So a tree of which one path is nearly certain grows
    deep, and one that could go on in many ways grows wide, as far as rows are cheap here.

    costs_ms  milliseconds of a draft pass by its rows; empty: all nodes are worth it
    sharing   sessions that share a pass, each with so many nodes
    """

    def __init__(self, costs_ms: Mapping[int, float], sharing: int = 1) -> None:
        self._curve = CostCurve(costs_ms).shared(sharing)

    def worthwhile(self, scores: Sequence[float], exponent: float) -> int:
        """How many of the nodes to expand now, at least one of them.

        scores      [nodes] log-probabilities of their paths times `exponent`, best first
        exponent  of `card.speculation.score`
        """
        chances = [math.exp(score / exponent) for score in scores]
        return self._curve.best_rows(chances)

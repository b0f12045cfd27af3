"""Growth rules of trees, by the value of the setting `speculation.growth`.

`frontier`  the interface of the rules, and the children of a row with the target's noise; each
            rule is one file beside it
"""

from __future__ import annotations

from card.speculation.drafters.growth.best_first import BestFirst
from card.speculation.drafters.growth.branch import Branch
from card.speculation.drafters.growth.fan_out import FanOut
from card.speculation.drafters.growth.frontier import (
    UNEXPANDED,
    Frontier,
    GrowthConfig,
    TreeView,
)
from card.speculation.drafters.growth.graph import Graph
from card.speculation.drafters.growth.lattice import Lattice
from card.speculation.drafters.growth.layered import Layered
from card.speculation.drafters.growth.sampled import Sampled

__all__ = [
    "GROWTHS",
    "UNEXPANDED",
    "Frontier",
    "GrowthConfig",
    "TreeView",
]

GROWTHS: dict[str, type[Frontier]] = {
    "best_first": BestFirst,
    "layered": Layered,
    "sampled": Sampled,
    "fan_out": FanOut,
    "branch": Branch,
    "graph": Graph,
    "lattice": Lattice,
}

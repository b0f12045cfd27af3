"""Growth rules of trees, by the value of the setting `speculation.growth`.

`frontier`  the interface of the rules, the children of a row with the target's noise, and
            best-first growth; each other rule is one file beside it
"""

from __future__ import annotations

from card.speculation.drafters.growth.branch import Branch
from card.speculation.drafters.growth.fan_out import FanOut
from card.speculation.drafters.growth.frontier import UNEXPANDED, BestFirst, Frontier, TreeView
from card.speculation.drafters.growth.graph import Graph
from card.speculation.drafters.growth.lattice import Lattice
from card.speculation.drafters.growth.layered import Layered
from card.speculation.drafters.growth.sampled import Sampled
from card.speculation.drafters.interface import GrowthConfig

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

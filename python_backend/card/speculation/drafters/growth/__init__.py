"""In which order a tree grows, by the value of the setting `speculation.growth`.

`frontier`   the seam of a rule, and one file for each
`width`      how many nodes a pass expands
`expansion`  the rows of one pass: those nodes, and n-gram proposals behind them
`children`   what hangs below each row, scored as the target will choose
"""

from __future__ import annotations

from card.speculation.drafters.growth.best_first import BestFirst
from card.speculation.drafters.growth.frontier import UNEXPANDED, Frontier
from card.speculation.drafters.growth.layered import Layered

__all__ = ["GROWTHS", "UNEXPANDED", "Frontier"]

GROWTHS: dict[str, type[Frontier]] = {
    "best_first": BestFirst,
    "layered": Layered,
}

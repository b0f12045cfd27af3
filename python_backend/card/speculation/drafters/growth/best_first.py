"""Best-first growth: each pass expands the likeliest nodes of the whole tree (SpecExec,
arXiv 2406.02532)."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from card.speculation.drafters.growth.frontier import (
    UNEXPANDED,
    Frontier,
    GrowthConfig,
    OpenNode,
    TreeView,
)


class BestFirst(Frontier):
    """A heap by score."""

    runs_ahead = True

    def __init__(self, config: GrowthConfig) -> None:
        super().__init__(config)
        self._heap: list[tuple[float, int, int]] = []

    def push(self, node: int, score: float, depth: int) -> None:
        heappush(self._heap, (-score, node, depth))

    def refill(self, nodes: Iterable[OpenNode]) -> None:
        self._heap = [(-score, node, depth) for node, score, depth in nodes]
        heapify(self._heap)

    def take(self, view: TreeView, width: int, depth: int) -> list[int]:
        taken: list[int] = []
        while self._heap and len(taken) < width:
            _, node, node_depth = heappop(self._heap)
            if node_depth < depth - 1 and view.entry[node] == UNEXPANDED:
                taken.append(node)
        return taken

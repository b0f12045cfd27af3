"""CARD's growth: the `width` likeliest children of the newest layer form the next layer
(arXiv 2508.04462)."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from card.speculation.drafters.growth.frontier import UNEXPANDED, Frontier, OpenNode, TreeView
from card.speculation.drafters.interface import GrowthConfig


class Layered(Frontier):
    """A heap by depth, then by score."""

    def __init__(self, config: GrowthConfig) -> None:
        super().__init__(config)
        self._heap: list[tuple[int, float, int]] = []

    def push(self, node: int, score: float, depth: int) -> None:
        heappush(self._heap, (-depth, -score, node))

    def refill(self, nodes: Iterable[OpenNode]) -> None:
        self._heap = [(-depth, -score, node) for node, score, depth in nodes]
        heapify(self._heap)

    def take(self, view: TreeView, width: int, depth: int) -> list[int]:
        heap = self._heap
        taken: list[int] = []
        layer = None
        while heap and len(taken) < width and layer in (None, heap[0][0]):
            above, _, node = heappop(heap)
            if -above < depth - 1 and view.entry[node] == UNEXPANDED:
                layer = above
                taken.append(node)
        return taken

"""In which order the draft expands nodes: two rules behind one signature."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

UNEXPANDED = -1
"""Entry of a node whose token was never forwarded, so its children are unknown."""

Node = tuple[int, float, int]
"""Index, score and depth of a node."""


class Frontier(Protocol):
    """Unexpanded nodes of a tree, best first by some rule."""

    def push(self, node: int, score: float, depth: int) -> None: ...

    def refill(self, nodes: Iterable[Node]) -> None:
        """Hold these and nothing else."""

    def take(self, width: int, depth: int, entry: Sequence[int]) -> list[int]:
        """At most `width` nodes to expand now. One too deep for its children to end above `depth`
        is forgotten until the next refill.

        entry  of every node; what was forwarded as a guess meanwhile is passed over
        """


class BestFirst:
    """The likeliest nodes, wherever they are (SpecExec, arXiv 2406.02532)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int]] = []

    def push(self, node: int, score: float, depth: int) -> None:
        heappush(self._heap, (-score, node, depth))

    def refill(self, nodes: Iterable[Node]) -> None:
        self._heap = [(-score, node, depth) for node, score, depth in nodes]
        heapify(self._heap)

    def take(self, width: int, depth: int, entry: Sequence[int]) -> list[int]:
        taken: list[int] = []
        while self._heap and len(taken) < width:
            _, node, node_depth = heappop(self._heap)
            if node_depth < depth - 1 and entry[node] == UNEXPANDED:
                taken.append(node)
        return taken


class Layered:
    """CARD's rule: of all children of the newest layer, the `width` likeliest form the next."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int]] = []

    def push(self, node: int, score: float, depth: int) -> None:
        heappush(self._heap, (-depth, -score, node))

    def refill(self, nodes: Iterable[Node]) -> None:
        self._heap = [(-depth, -score, node) for node, score, depth in nodes]
        heapify(self._heap)

    def take(self, width: int, depth: int, entry: Sequence[int]) -> list[int]:
        heap = self._heap
        taken: list[int] = []
        layer = None
        while heap and len(taken) < width and layer in (None, heap[0][0]):
            above, _, node = heappop(heap)
            if -above < depth - 1 and entry[node] == UNEXPANDED:
                layer = above
                taken.append(node)
        return taken


FRONTIERS: dict[str, type[BestFirst] | type[Layered]] = {
    "best_first": BestFirst,
    "layered": Layered,
}
"""By the value of the setting `speculation.growth`."""

"""The draft's own copy of a candidate tree while it grows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from card.cache import ROOT, follow
from card.drafting.children import Child
from card.drafting.growth import UNEXPANDED, BestFirst, Frontier


@dataclass(slots=True)
class ReRoot:
    """What a re-root means for the draft's KV cache, in pending entries of the engine session.

    confirmed  entries on the committed path, in order
    surviving  entries of nodes that stay, in order
    matched    committed tokens that the tree held
    """

    confirmed: list[int]
    surviving: list[int]
    matched: int


class GrowingTree:
    """Nodes below the last committed token; parents stand before their children.

    Lists by node, because a pass adds a dozen nodes and NumPy takes longer to begin than that:

    token, parent  parent is a node or `ROOT`
    score          log-probability of the path from the root
    depth          0 for children of the root
    entry          pending KV entry or `UNEXPANDED`
    """

    NO_NODE = -2
    """Stands for a forwarded row that turned out to be no node."""

    def __init__(self, capacity: int, frontier: Frontier | None = None) -> None:
        self.capacity = capacity
        self._frontier: Frontier = BestFirst() if frontier is None else frontier
        self.clear()

    def clear(self) -> None:
        self.token: list[int] = []
        self.parent: list[int] = []
        self.score: list[float] = []
        self.depth: list[int] = []
        self.entry: list[int] = []
        self._frontier.refill(())

    def __len__(self) -> int:
        return len(self.token)

    @property
    def height(self) -> int:
        """Nodes of the longest path."""
        return max(self.depth, default=-1) + 1

    def hang(self, parent: int, children: Sequence[Child]) -> None:
        """Add unexpanded children below a node (or `ROOT`): the first of them, if not all fit."""
        above = 0.0 if parent == ROOT else self.score[parent]
        depth = self.depth_of(parent) + 1
        node = len(self.token)
        for token, log_probability in children[: self.capacity - node]:
            score = above + log_probability
            self.token.append(token)
            self.parent.append(parent)
            self.score.append(score)
            self.depth.append(depth)
            self.entry.append(UNEXPANDED)
            self._frontier.push(node, score, depth)
            node += 1

    def take(self, width: int, depth: int) -> list[int]:
        """At most `width` nodes that are to be expanded next by the growth rule; `depth` layers
        are all there may be."""
        return self._frontier.take(width, depth, self.entry)

    def leave(self, nodes: Iterable[int]) -> None:
        """Of the nodes that were taken, those that are not to be expanded now after all."""
        for node in nodes:
            self._frontier.push(node, self.score[node], self.depth[node])

    def depth_of(self, node: int) -> int:
        """Depth of a node; -1 for `ROOT`."""
        return -1 if node == ROOT else self.depth[node]

    def re_root(self, committed: list[int]) -> ReRoot:
        """Make the last of `committed` tokens the root: its descendants survive, the rest goes.

        When the tree lacks a committed token everything below the last match is wrong and goes.
        """
        path = follow(self.token, self.parent, ROOT, committed)
        confirmed = [self.entry[node] for node in path if self.entry[node] != UNEXPANDED]
        if len(path) < len(committed) or not path:
            self.clear()
            return ReRoot(confirmed, [], len(path))
        return ReRoot(confirmed, self._keep_below(path[-1]), len(path))

    def _keep_below(self, root: int) -> list[int]:
        """Drop all but the descendants of `root`; returns the KV entries that stay, in order."""
        place = {root: ROOT}
        kept: list[int] = []
        for node in range(root + 1, len(self.token)):
            if self.parent[node] in place:
                place[node] = len(kept)
                kept.append(node)
        above, base = self.score[root], self.depth[root] + 1
        surviving = sorted(self.entry[node] for node in kept if self.entry[node] != UNEXPANDED)
        moved = {entry: index for index, entry in enumerate(surviving)} | {UNEXPANDED: UNEXPANDED}
        self.token = [self.token[node] for node in kept]
        self.parent = [place[self.parent[node]] for node in kept]
        self.score = [self.score[node] - above for node in kept]
        self.depth = [self.depth[node] - base for node in kept]
        self.entry = [moved[self.entry[node]] for node in kept]
        self._frontier.refill(
            (node, self.score[node], self.depth[node])
            for node, entry in enumerate(self.entry)
            if entry == UNEXPANDED
        )
        return surviving

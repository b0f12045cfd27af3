"""One candidate tree while spines and side branches grow it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from card.cache import ROOT


class CandidateTree:
    """Nodes below the last committed token; parents stand before their children.

    Lists by node: `token`, `parent` (a node or `ROOT`), `score` (log-probability of the path from
    the root) and `depth` (0 for children of the root).
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.clear()

    def clear(self) -> None:
        self.token: list[int] = []
        self.parent: list[int] = []
        self.score: list[float] = []
        self.depth: list[int] = []
        self._child: dict[tuple[int, int], int] = {}
        self._has_children: set[int] = set()

    def __len__(self) -> int:
        return len(self.token)

    @property
    def is_full(self) -> bool:
        return len(self.token) >= self.capacity

    def add(self, parent: int, token: int, log_probability: float) -> int:
        """The child of `parent` that carries `token`, added if it is new. The tree is not full."""
        known = self._child.get((parent, token))
        if known is not None:
            return known
        node = len(self.token)
        above = 0.0 if parent == ROOT else self.score[parent]
        self.token.append(token)
        self.parent.append(parent)
        self.score.append(above + min(log_probability, 0.0))
        self.depth.append(self.depth_of(parent) + 1)
        self._child[parent, token] = node
        self._has_children.add(parent)
        return node

    def depth_of(self, node: int) -> int:
        """Depth of a node; -1 for `ROOT`."""
        return -1 if node == ROOT else self.depth[node]

    def path(self, node: int) -> list[int]:
        """Tokens from the root to `node`."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.token[node])
            node = self.parent[node]
        return tokens[::-1]

    def leaves(self) -> list[int]:
        """Nodes without children, likeliest first; `ROOT` alone in an empty tree."""
        if not self.token:
            return [ROOT]
        found = [node for node in range(len(self.token)) if node not in self._has_children]
        return sorted(found, key=lambda node: -self.score[node])

    def tip(self) -> int:
        """The end of the path along the likeliest children."""
        best: dict[int, int] = {}
        for node, parent in enumerate(self.parent):
            if parent not in best or self.score[node] > self.score[best[parent]]:
                best[parent] = node
        node = ROOT
        while node in best:
            node = best[node]
        return node

    def re_root(self, committed: list[int]) -> dict[int, int]:
        """Make the last of `committed` the root; the new index of every node that survives.

        The last committed token's own node becomes `ROOT`. When the tree lacks a committed token
        nothing survives.
        """
        root = ROOT
        for token in committed:
            child = self._child.get((root, token))
            if child is None:
                self.clear()
                return {}
            root = child
        if root == ROOT:
            return {node: node for node in range(len(self.token))}
        old = (self.token, self.parent, self.score)
        base = self.score[root]
        self.clear()
        survives = {root: ROOT}
        for node, (token, parent, score) in enumerate(zip(*old, strict=True)):
            if parent in survives:
                above = survives[parent]
                given = 0.0 if above == ROOT else self.score[above]
                survives[node] = self.add(above, token, score - base - given)
        return survives

    def arrays(
        self, first: int = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Tokens, parents and scores of the nodes from `first` on."""
        return (
            np.array(self.token[first:], np.int64),
            np.array(self.parent[first:], np.int64),
            np.array(self.score[first:], np.float64),
        )

"""The draft's own copy of a candidate tree while it grows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from card.cache import ROOT

UNEXPANDED = -1
"""Entry of a node whose token was never forwarded, so its children are unknown."""


@dataclass(frozen=True, slots=True)
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

    token, parent  [nodes] int64; parent is a node or `ROOT`
    score          [nodes] float64, log-probability of the path from the root
    depth          [nodes] int64, 0 for children of the root
    entry          [nodes] int64, pending KV entry or `UNEXPANDED`
    """

    NO_NODE = -2
    """Stands for a forwarded row that turned out to be no node."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self._token = np.empty(capacity, np.int64)
        self._parent = np.empty(capacity, np.int64)
        self._score = np.empty(capacity, np.float64)
        self._depth = np.empty(capacity, np.int64)
        self._entry = np.empty(capacity, np.int64)

    @property
    def token(self) -> NDArray[np.int64]:
        return self._token[: self.count]

    @property
    def parent(self) -> NDArray[np.int64]:
        return self._parent[: self.count]

    @property
    def score(self) -> NDArray[np.float64]:
        return self._score[: self.count]

    @property
    def depth(self) -> NDArray[np.int64]:
        return self._depth[: self.count]

    @property
    def entry(self) -> NDArray[np.int64]:
        return self._entry[: self.count]

    @property
    def height(self) -> int:
        """Nodes of the longest path."""
        return int(self.depth.max()) + 1 if self.count else 0

    def clear(self) -> None:
        self.count = 0

    def add(
        self,
        token: NDArray[np.int64],
        parent: NDArray[np.int64],
        score: NDArray[np.float64],
    ) -> slice:
        """Append unexpanded nodes; the likeliest ones if not all fit. Returns where they stand."""
        room = self.capacity - self.count
        if len(token) > room:
            fits = np.sort(np.argsort(-score, kind="stable")[:room])
            token, parent, score = token[fits], parent[fits], score[fits]
        added = slice(self.count, self.count + len(token))
        self._token[added] = token
        self._parent[added] = parent
        self._score[added] = score
        self._entry[added] = UNEXPANDED
        self._depth[added] = np.where(parent == ROOT, 0, self._depth[parent] + 1)
        for node in (np.flatnonzero(parent >= added.start) + added.start).tolist():
            self._depth[node] = self._depth[self._parent[node]] + 1
        self.count = added.stop
        return added

    def set_entries(self, nodes: NDArray[np.int64], first_entry: int) -> None:
        """Nodes were forwarded: their KV entries are `first_entry`, `first_entry` + 1, ...;
        an entry of `NO_NODE` belongs to nobody."""
        is_node = nodes != self.NO_NODE
        self._entry[nodes[is_node]] = first_entry + np.flatnonzero(is_node)

    def depth_of(self, node: int) -> int:
        """Depth of a node; -1 for `ROOT`."""
        return -1 if node == ROOT else int(self._depth[node])

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` (or `ROOT`) that carries `token`."""
        found = np.flatnonzero((self.parent == node) & (self.token == token))
        return int(found[0]) if found.size else None

    def re_root(self, committed: list[int]) -> ReRoot:
        """Make the last of `committed` tokens the root: its descendants survive, the rest goes.

        When the tree lacks a committed token everything below the last match is wrong and goes.
        """
        path = self._path(committed)
        confirmed = [int(self._entry[node]) for node in path if self._entry[node] != UNEXPANDED]
        if len(path) < len(committed) or not path:
            self.clear()
            return ReRoot(confirmed, [], len(path))
        surviving = self._keep_below(path[-1])
        return ReRoot(confirmed, surviving, len(path))

    def _path(self, committed: list[int]) -> list[int]:
        path: list[int] = []
        node = ROOT
        for token in committed:
            child = self.child(node, token)
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def _keep_below(self, root: int) -> list[int]:
        """Drop all but the descendants of `root`; returns the KV entries that stay, in order."""
        new_index = {root: ROOT}
        nodes: list[int] = []
        for node, parent in enumerate(self.parent[root + 1 :].tolist(), root + 1):
            if parent in new_index:
                new_index[node] = len(nodes)
                nodes.append(node)
        kept = np.array(nodes, dtype=np.int64)
        count = len(nodes)
        parents = [new_index[parent] for parent in self._parent[kept].tolist()]
        entries = self._entry[kept]
        self._token[:count] = self._token[kept]
        self._score[:count] = self._score[kept] - self._score[root]
        self._depth[:count] = self._depth[kept] - self._depth[root] - 1
        self._parent[:count] = parents
        expanded = entries != UNEXPANDED
        surviving = np.sort(entries[expanded])
        self._entry[:count] = UNEXPANDED
        self._entry[:count][expanded] = np.searchsorted(surviving, entries[expanded])
        self.count = count
        return [int(entry) for entry in surviving]

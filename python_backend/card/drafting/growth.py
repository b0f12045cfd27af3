"""Which nodes the draft expands next: two rules behind one signature."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from card.drafting.tree import UNEXPANDED, GrowingTree


def grow_best_first(tree: GrowingTree, width: int, depth: int) -> NDArray[np.int64]:
    """The `width` likeliest unexpanded nodes, wherever they are (SpecExec, arXiv 2406.02532)."""
    return _likeliest(tree, _open_nodes(tree, depth), width)


def grow_layered(tree: GrowingTree, width: int, depth: int) -> NDArray[np.int64]:
    """CARD's rule: of all children of the newest layer, the `width` likeliest form the next."""
    found = _open_nodes(tree, depth)
    if found.size:
        found = found[tree.depth[found] == tree.depth[found].max()]
    return _likeliest(tree, found, width)


def _open_nodes(tree: GrowingTree, depth: int) -> NDArray[np.int64]:
    return np.flatnonzero((tree.entry == UNEXPANDED) & (tree.depth < depth - 1))


def _likeliest(tree: GrowingTree, nodes: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    if nodes.size <= width:
        return nodes
    return np.sort(nodes[np.argpartition(-tree.score[nodes], width - 1)[:width]])


RULES = {"best_first": grow_best_first, "layered": grow_layered}

"""The query of query-and-correct: what the target takes from a tree (arXiv 2508.04462, §3).

Pure functions of a snapshot. Nothing here decides a token; a poor answer costs speed alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from card.cache.tree import ROOT, Tree

_UNLIKELY = np.log(1e-3)
"""Nodes below this probability (given the last committed token) are not worth a row."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that may follow the last committed one, parents before children.

    parents[i] is an index into `tokens` or `ROOT` for the last committed token.
    """

    tokens: list[int]
    parents: list[int]

    @classmethod
    def chain(cls, tokens: list[int]) -> Candidates:
        """Every token follows the one before it."""
        return cls(tokens, list(range(ROOT, len(tokens) - 1)))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether every token follows the one before it."""
        return all(parent == index - 1 for index, parent in enumerate(self.parents))


NO_CANDIDATES = Candidates([], [])


def descend(tree: Tree, node: int, committed: Iterable[int]) -> int | None:
    """The node reached from `node` along `committed` tokens, or None where the tree lacks one."""
    for token in committed:
        children = np.flatnonzero((tree.parent == node) & (tree.token == token))
        if children.size == 0:
            return None
        node = int(children[0])
    return node


def best_chain(tree: Tree, node: int, limit: int) -> Candidates:
    """The path of at most `limit` tokens below `node` with the most accepted ones to be expected.

    Following the likeliest child step by step can walk into a short branch; the expected number
    of accepted tokens of a path is the sum of its nodes' path probabilities, so that is maximised.
    """
    below, weight = _likely_descendants(tree, node, limit)
    value: dict[int, float] = {}
    heir: dict[int, int] = {}
    parent = tree.parent
    for index, probability in zip(reversed(below), reversed(weight), strict=True):
        total = probability + value.get(index, 0.0)
        above = int(parent[index])
        if total > value.get(above, 0.0):
            value[above] = total
            heir[above] = index
    tokens: list[int] = []
    while (child := heir.get(node)) is not None:
        tokens.append(int(tree.token[child]))
        node = child
    return Candidates.chain(tokens)


def best_subtree(tree: Tree, node: int, limit: int, branches: int) -> Candidates:
    """The likeliest connected subtree below `node`: at most `limit` nodes on `branches` paths."""
    below, weight = _likely_descendants(tree, node, limit)
    order = sorted(range(len(below)), key=lambda i: (-weight[i], below[i]))
    place = {node: ROOT}
    has_child: set[int] = set()
    leaves = 0
    tokens: list[int] = []
    parents: list[int] = []
    for i in order:
        if len(tokens) == limit:
            break
        above = int(tree.parent[below[i]])
        if above not in place:
            continue
        opens_branch = above in has_child or not tokens
        if opens_branch and leaves == branches:
            continue
        leaves += opens_branch
        has_child.add(above)
        place[below[i]] = len(tokens)
        tokens.append(int(tree.token[below[i]]))
        parents.append(place[above])
    return Candidates(tokens, parents)


def _likely_descendants(tree: Tree, node: int, reach: int) -> tuple[list[int], list[float]]:
    """Nodes at most `reach` below `node` worth considering, in order, with their probability
    given `node`."""
    base = float(tree.score[node]) if node != ROOT else 0.0
    if not np.isfinite(base):
        return [], []
    after = node + 1
    likely = np.flatnonzero(tree.score[after:] >= base + _UNLIKELY) + after
    depth = {node: 0}
    below: list[int] = []
    for index, above in zip(likely.tolist(), tree.parent[likely].tolist(), strict=True):
        above_depth = depth.get(above, reach)
        if above_depth < reach:
            depth[index] = above_depth + 1
            below.append(index)
    weight = np.exp(np.minimum(tree.score[below] - base, 0.0)).tolist() if below else []
    return below, weight

"""The query of query-and-correct: what the target takes from a tree (arXiv 2508.04462, §3).

Pure functions of a snapshot. Nothing here decides a token; a poor answer costs speed alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from card.cache.tree import ROOT, Tree, follow

LEAST_CHANCE = 1e-2
"""Nodes below this probability (given the last committed token) are not worth a row."""


@dataclass(slots=True)
class Candidates:
    """Tokens that may follow the last committed one, parents before children.

    parents[i] is an index into `tokens` or `ROOT` for the last committed token. chances[i] is how
    likely token i is accepted, and with it all above it.
    """

    tokens: list[int]
    parents: list[int]
    chances: list[float] = field(default_factory=list, compare=False)

    @classmethod
    def chain(cls, tokens: list[int], chances: list[float]) -> Candidates:
        """Every token follows the one before it."""
        return cls(tokens, list(range(ROOT, len(tokens) - 1)), chances)

    def first(self, count: int) -> Candidates:
        """The first `count` of them."""
        return Candidates(self.tokens[:count], self.parents[:count], self.chances[:count])

    def followed_by(self, others: Candidates) -> Candidates:
        """With others below the last of this chain, each as likely as both together."""
        if not len(self):
            return others
        first = len(self)
        return Candidates(
            [*self.tokens, *others.tokens],
            [*self.parents, *(first + parent for parent in others.parents)],
            [*self.chances, *(self.chances[-1] * chance for chance in others.chances)],
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def depths(self) -> Sequence[int]:
        """Of each, 0 for those that follow the last committed token."""
        if self.is_chain:
            return range(len(self.tokens))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        return depths

    @property
    def is_chain(self) -> bool:
        """Whether every token follows the one before it."""
        return self.parents == list(range(ROOT, len(self.parents) - 1))


NO_CANDIDATES = Candidates([], [])


def descend(tree: Tree, node: int, committed: Sequence[int]) -> int | None:
    """The node reached from `node` along `committed` tokens, or None where the tree lacks one."""
    if not committed:
        return node
    path = follow(tree.token, tree.parent, node, committed)
    return path[-1] if len(path) == len(committed) else None


def best_chain(tree: Tree, node: int, limit: int, exponent: float = 1.0) -> Candidates:
    """The path of at most `limit` tokens below `node` with the most accepted ones to be expected.

    exponent  log-probabilities times this are the tree's scores (`card.speculation.score`)

    Following the likeliest child step by step can walk into a short branch; the expected number
    of accepted tokens of a path is the sum of its nodes' path probabilities, so that is maximised.
    """
    below, weight = _likely_descendants(tree, node, limit)
    value: dict[int, float] = {}
    heir: dict[int, int] = {}
    parent = tree.parent
    for index, probability in zip(reversed(below), reversed(weight), strict=True):
        total = probability + value.get(index, 0.0)
        above = parent[index]
        if total > value.get(above, 0.0):
            value[above] = total
            heir[above] = index
    base = tree.score[node] if node != ROOT else 0.0
    tokens: list[int] = []
    chances: list[float] = []
    while (child := heir.get(node)) is not None:
        tokens.append(tree.token[child])
        chances.append(math.exp(min(tree.score[child] - base, 0.0) / exponent))
        node = child
    return Candidates.chain(tokens, chances)


def best_subtree(
    tree: Tree, node: int, limit: int, branches: int, exponent: float = 1.0
) -> Candidates:
    """The likeliest connected subtree below `node`: at most `limit` nodes on `branches` paths.

    exponent  as in `best_chain`
    """
    below, weight = _likely_descendants(tree, node, limit)
    order = sorted(range(len(below)), key=lambda i: (-weight[i], below[i]))
    place = {node: ROOT}
    has_child: set[int] = set()
    leaves = 0
    tokens: list[int] = []
    parents: list[int] = []
    chances: list[float] = []
    for i in order:
        if len(tokens) == limit:
            break
        above = tree.parent[below[i]]
        if above not in place:
            continue
        opens_branch = above in has_child or not tokens
        if opens_branch and leaves == branches:
            continue
        leaves += opens_branch
        has_child.add(above)
        place[below[i]] = len(tokens)
        tokens.append(tree.token[below[i]])
        parents.append(place[above])
        chances.append(weight[i] ** (1.0 / exponent))
    return Candidates(tokens, parents, chances)


def _likely_descendants(tree: Tree, node: int, reach: int) -> tuple[list[int], list[float]]:
    """Nodes at most `reach` below `node` worth considering, in order, with their probability
    given `node`."""
    base = tree.score[node] if node != ROOT else 0.0
    if not math.isfinite(base):
        return [], []
    parent, score, least = tree.parent, tree.score, base + math.log(LEAST_CHANCE)
    depth = {node: 0}
    below: list[int] = []
    weight: list[float] = []
    for index in range(node + 1, len(score)):
        if score[index] < least:
            continue
        above_depth = depth.get(parent[index], reach)
        if above_depth < reach:
            depth[index] = above_depth + 1
            below.append(index)
            weight.append(math.exp(min(score[index] - base, 0.0)))
    return below, weight

"""Trees through a lattice: several likely tokens at each place of a block (DiffuSpec's causal
search, arXiv 2510.02358).

A draft that fills a block in one pass ranks the tokens of every place without knowing the tokens
before it. So any token of a place may follow any token of the place before, and some of these paths
make no sense. The growth rule `lattice` weighs every step of a path with n-grams, which know the
tokens before it; a beam finds the best path. Other rules take the product of the draft's
probabilities. A draft that works step by step has no lattice: for it, `lattice` is best-first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import ClassVar

from card.cache import ROOT
from card.speculation.drafters.growth.best_first import BestFirst
from card.speculation.drafters.growth.frontier import Child
from card.speculation.tree import sharpened

_BEAM = 3
"""Paths that the search keeps at each place, as in the paper."""

_SHARE = 0.5
"""Weight of the draft's log-probability; the rest is the weight of the n-grams'."""

_UNSEEN = 0.02
"""Probability of a token that the n-grams did not see in a context that they know."""

Weigh = Callable[[Sequence[int], list[Child]], list[Child]]
"""Takes the tokens before a place, from the root of the tree, and the children at the place;
returns the children weighed, likeliest first."""


class Lattice(BestFirst):
    """Best-first growth; steps through a block are weighed with n-grams."""

    weighs_ngrams: ClassVar[bool] = True


@dataclass(slots=True)
class Paths:
    """Nodes of paths through a lattice, parents before children.

    token, parent  parent is a node or `ROOT`
    logprob, rank  of each node given its parent (`Child`)
    total          [nodes] rank of the path to each node
    """

    token: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    logprob: list[float] = field(default_factory=list)
    rank: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    _number: dict[tuple[int, int], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.token)

    def find(self, parent: int, token: int) -> int | None:
        return self._number.get((parent, token))

    def add(self, parent: int, child: Child) -> int:
        """Add a child, unless it is there; returns its number."""
        known = self._number.get((parent, child.token))
        if known is not None:
            return known
        node = self._number[parent, child.token] = len(self.token)
        self.token.append(child.token)
        self.parent.append(parent)
        self.logprob.append(child.logprob)
        self.rank.append(child.rank)
        self.total.append(self._total(parent) + child.rank)
        return node

    def path(self, node: int) -> list[int]:
        """Tokens from the root to `node`."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.token[node])
            node = self.parent[node]
        return tokens[::-1]

    def _total(self, node: int) -> float:
        return 0.0 if node == ROOT else self.total[node]


def unweighed(_: Sequence[int], children: list[Child]) -> list[Child]:
    """The draft's own probabilities."""
    return children


def best_path(places: Sequence[list[Child]], weigh: Weigh = unweighed) -> list[Child]:
    """The path with the highest product of probabilities that a beam finds, a child a place."""
    beam: list[tuple[float, list[Child]]] = [(0.0, [])]
    for children in places:
        longer: list[tuple[float, list[Child]]] = []
        for total, path in beam:
            tokens = [child.token for child in path]
            for child in weigh(tokens, children)[:_BEAM]:
                longer.append((total + child.rank, [*path, child]))
        if not longer:
            break
        beam = heapq.nlargest(_BEAM, longer, key=_first)
    return max(beam, key=_first)[1]


def likeliest_paths(places: Sequence[list[Child]], most: int, weigh: Weigh = unweighed) -> Paths:
    """The best path, and the likeliest other paths: at most `most` nodes.

    places  the children at each place, likeliest first
    """
    paths = Paths()
    node = ROOT
    for child in best_path(places, weigh)[:most]:
        node = paths.add(node, child)
    order = count()
    found: list[tuple[float, int, int, int, Child]] = []

    def offer(parent: int, place: int) -> None:
        """The children of a node become possible nodes."""
        if place < len(places):
            above = 0.0 if parent == ROOT else paths.total[parent]
            for child in weigh(paths.path(parent), places[place]):
                heapq.heappush(found, (-above - child.rank, next(order), parent, place, child))

    offer(ROOT, 0)
    while found:
        _, _, parent, place, child = heapq.heappop(found)
        if paths.find(parent, child.token) is None and len(paths) >= most:
            break
        offer(paths.add(parent, child), place + 1)
    return paths


def weighed(children: list[Child], followers: Mapping[int, float], exponent: float) -> list[Child]:
    """Children weighed with n-grams, likeliest first. Their probabilities keep their sum.

    followers  chances of the tokens that followed the same tokens before; empty: unknown
    exponent   of `card.speculation.tree`
    """
    if not followers or not children:
        return children
    known = [followers.get(child.token, _UNSEEN) for child in children]
    weights = [
        math.exp(_SHARE * child.logprob) * chance ** (1 - _SHARE)
        for child, chance in zip(children, known, strict=True)
    ]
    total = sum(math.exp(child.logprob) for child in children)
    scale = min(total, 1.0) / sum(weights)
    logprobs = [min(0.0, math.log(max(weight * scale, 1e-30))) for weight in weights]
    ranks = sharpened(logprobs, exponent)
    tokens = [child.token for child in children]
    return sorted(map(Child, tokens, logprobs, ranks), key=_rank, reverse=True)


def _first(pair: tuple[float, list[Child]]) -> float:
    return pair[0]


def _rank(child: Child) -> float:
    return child.rank

"""Trees through a lattice: several likely tokens at each place of a block (DiffuSpec's causal
search, arXiv 2510.02358).

A draft that fills a block in one pass ranks the tokens of every place without knowing the tokens
before it. So any token of a place may follow any token of the place before, and some of these paths
make no sense. The growth rule `lattice` weighs every step of a path with n-grams, which know the
tokens before it, and adds the tokens that the n-grams know; a beam finds the best path. Other rules
take the product of the draft's probabilities. A draft that works step by step has no lattice: for
it, `lattice` is best-first.

Draft and n-grams are mixed as DiffuSpec mixes them, by log-probabilities. Under the target's noise
they are mixed without it, and then it is added.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import ClassVar

from card.cache import LEAST_CHANCE
from card.speculation.drafters.growth.frontier import UNLIKELY, BestFirst, Child
from card.speculation.drafters.interface import GrowingTree
from card.speculation.sources.tree import sharpened

_BEAM = 2
"""Paths that the search keeps at each place; the paper keeps 3. More gained nothing."""

_SHARES = (0.8, 0.3)
"""Weight of the draft's log-probability at the first place, where the draft knows the tokens
before, and at the others; the rest is the weight of the n-grams'."""

_UNSEEN = math.log(0.02)
"""Log-probability of a token that the n-grams did not see in a context that they know."""

_UNRANKED = math.log(0.3)
"""Log-probability of a token that the draft does not rank, relative to the last that it ranks."""

Noise = Callable[[int, Sequence[int]], Sequence[float]]
"""Takes a place of the block and tokens; returns the noise of each, -inf for a token that the draft
cannot rank."""

Weigh = Callable[[Sequence[int], list[Child]], list[Child]]
"""Takes the tokens before a place, from the root of the tree, and the children at the place;
returns the children weighed, likeliest first."""


class Lattice(BestFirst):
    """Best-first growth; steps through a block are weighed with n-grams."""

    weighs_ngrams: ClassVar[bool] = True


class Paths:
    """New nodes of one pass, parents before children, as far as the tree has room.

    token, parent  [nodes]
    logprob, rank  [nodes], of each node given its parent (`Child`)
    """

    def __init__(self, tree: GrowingTree) -> None:
        """New nodes are numbered behind those of `tree`."""
        nodes = enumerate(zip(tree.parent, tree.token, strict=True))
        self._number = {pair: node for node, pair in nodes}
        self._first, self._room = len(tree), tree.room
        self.token: list[int] = []
        self.parent: list[int] = []
        self.logprob: list[float] = []
        self.rank: list[float] = []

    def find(self, parent: int, token: int) -> int | None:
        return self._number.get((parent, token))

    def add(self, parent: int, child: Child) -> int | None:
        """The number of a child, which is added unless it is there; None: there is no room."""
        node = self.find(parent, child.token)
        if node is None and len(self.token) < self._room:
            node = self._number[parent, child.token] = self._first + len(self.token)
            self.token.append(child.token)
            self.parent.append(parent)
            self.logprob.append(child.logprob)
            self.rank.append(child.rank)
        return node


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


def likeliest_paths(
    paths: Paths,
    root: int,
    places: Sequence[list[Child]],
    most: int,
    weigh: Weigh = unweighed,
) -> list[float]:
    """Add the best path below `root`, then the likeliest other paths, together at most `most`
    nodes. Returns the ranks of the beginnings of the best path.

    places  the children at each place, likeliest first
    """
    reached: dict[int, tuple[float, list[int]]] = {root: (0.0, [])}

    def step(parent: int, child: Child) -> int | None:
        node = paths.add(parent, child)
        if node is not None and node not in reached:
            above, tokens = reached[parent]
            reached[node] = above + child.rank, [*tokens, child.token]
        return node

    node = root
    for child in best_path(places, weigh)[:most]:
        below = step(node, child)
        if below is None:
            break
        node = below
    best = set(reached)
    totals = [total for total, _ in reached.values()][1:]
    order = count()
    found: list[tuple[float, int, int, int, Child]] = []

    def offer(parent: int, place: int) -> None:
        """The children of a node become possible nodes."""
        if place < len(places):
            above, tokens = reached[parent]
            children = places[place]
            # Weights of other nodes are not worth their time.
            for child in weigh(tokens, children) if parent in best else children:
                heapq.heappush(found, (-above - child.rank, next(order), parent, place, child))

    offer(root, 0)
    while found:
        _, _, parent, place, child = heapq.heappop(found)
        if paths.find(parent, child.token) not in reached and len(reached) > most:
            break
        below = step(parent, child)
        if below is not None:
            offer(below, place + 1)
    return totals


class NgramWeights:
    """Weighs the steps of paths with n-grams; implements `Weigh`.

    followers  chances of the tokens that may follow the tokens from the root, by their path
    exponent   of `card.speculation.sources.tree`
    noise      noise of tokens at a place; None: there is none
    """

    def __init__(
        self,
        followers: Callable[[Sequence[int]], Mapping[int, float]],
        exponent: float,
        noise: Noise | None = None,
    ) -> None:
        self._followers = followers
        self._exponent = exponent
        self._noise = noise
        self._known: dict[tuple[int, ...], list[Child]] = {}

    def __call__(self, path: Sequence[int], children: list[Child]) -> list[Child]:
        key = tuple(path)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._weighed(key, children)
        return known

    def _weighed(self, path: tuple[int, ...], children: list[Child]) -> list[Child]:
        followers = self._followers(path)
        if not followers or not children:
            return children
        share = _SHARES[min(len(path), 1)]
        logprobs = {child.token: child.logprob for child in children}
        tokens = [*logprobs, *(token for token in followers if token not in logprobs)]
        noise = self._noise(len(path), tokens) if self._noise else [0.0] * len(tokens)
        ranked = list(zip(logprobs.values(), noise, strict=False))
        least = min(logprob - added for logprob, added in ranked) + _UNRANKED
        mixed = []
        for token, added in zip(tokens, noise, strict=True):
            own = logprobs[token] - added if token in logprobs else least
            chance = followers.get(token)
            seen = _UNSEEN if chance is None else math.log(max(chance, LEAST_CHANCE))
            mixed.append(share * own + (1 - share) * seen + added)
        highest = max(mixed)
        weights = [math.exp(value - highest) for value in mixed]
        total = min(1.0, sum(math.exp(logprob) for logprob in logprobs.values()))
        norm = math.log(max(total, LEAST_CHANCE) / sum(weights)) - highest
        given = [min(0.0, value + norm) for value in mixed]
        ranks = sharpened(given, self._exponent)
        found = sorted(map(Child, tokens, given, ranks), key=_rank, reverse=True)
        return [child for child in found if child.rank > UNLIKELY] or found[:1]


def _first(pair: tuple[float, list[Child]]) -> float:
    return pair[0]


def _rank(child: Child) -> float:
    return child.rank

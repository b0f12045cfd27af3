"""What one draft pass forwards: nodes to expand and guesses behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from card.cache import ROOT
from card.drafting.tree import GrowingTree
from card.engines import FOLLOWS_PREFIX
from card.lookup import LONGEST_CONTEXT, TextLookup
from card.settings import SpeculationSettings

_MOST_GUESSES = 2
"""Guesses behind a node: each costs a row in every pass, and more than two brought nothing."""


@dataclass(slots=True)
class Expansion:
    """Rows of a pass in order: `nodes`, then `guesses`.

    nodes    unexpanded nodes of the tree, or `ROOT` alone behind a text
    guesses  (row that the guess stands behind, guessed token), rows before their guesses
    """

    nodes: list[int]
    guesses: list[tuple[int, int]]

    @classmethod
    def of_root(cls, guessed: Sequence[int]) -> Expansion:
        """The text's end and a chain of guesses behind it."""
        return cls([ROOT], list(enumerate(guessed)))

    @property
    def rows(self) -> int:
        return len(self.nodes) + len(self.guesses)

    @property
    def guessed(self) -> list[int]:
        return [token for _, token in self.guesses]

    def depths(self, tree: GrowingTree) -> list[int]:
        """Depth of every row's token; -1 for the text's end."""
        depths = [tree.depth_of(node) for node in self.nodes]
        for above, _ in self.guesses:
            depths.append(depths[above] + 1)
        return depths

    def tree_rows(self, tree: GrowingTree, pending: int) -> tuple[list[int], list[int]]:
        """Tokens and parents (pending KV entries) of the rows, which become `pending` and on."""
        tokens = [tree.token[node] for node in self.nodes]
        above = [tree.parent[node] for node in self.nodes]
        parents = [FOLLOWS_PREFIX if node == ROOT else tree.entry[node] for node in above]
        for row, token in self.guesses:
            tokens.append(token)
            parents.append(pending + row)
        return tokens, parents


def choose_expansion(
    tree: GrowingTree,
    lookup: TextLookup,
    how: SpeculationSettings,
    depth: int,
    room: int,
    worthwhile: Callable[[Sequence[float]], int],
) -> Expansion:
    """The next nodes by the growth rule, and a chain of guesses behind the likeliest of them.

    depth       the tree may run this far ahead of the text
    room        most rows, all told
    worthwhile  how many of nodes with such scores are worth their rows
    """
    nodes = tree.take(min(how.width, room), depth)
    if not nodes:
        return Expansion([], [])
    if len(nodes) > 1:
        count = worthwhile([tree.score[node] for node in nodes])
        tree.leave(nodes[count:])
        nodes = nodes[:count]
    # Guesses cost rows, so they go where the tree most likely gets deeper.
    place = max(range(len(nodes)), key=lambda row: tree.score[nodes[row]])
    node = nodes[place]
    length = min(how.lookahead, _MOST_GUESSES, depth - 2 - tree.depth[node], room - len(nodes))
    guessed = lookup.guesses(_path(tree, node), length) if length > 0 else []
    above = [place, *range(len(nodes), len(nodes) + len(guessed))]
    return Expansion(nodes, list(zip(above, guessed, strict=False)))


def _path(tree: GrowingTree, node: int) -> list[int]:
    """Tokens from the root to `node`, as many as a guess may look at."""
    path: list[int] = []
    while node != ROOT and len(path) < LONGEST_CONTEXT:
        path.append(tree.token[node])
        node = tree.parent[node]
    return path[::-1]

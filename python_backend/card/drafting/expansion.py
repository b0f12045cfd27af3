"""What one draft pass forwards: nodes to expand and guesses behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from card.cache import ROOT
from card.drafting.growth import RULES
from card.drafting.tree import GrowingTree
from card.engines import FOLLOWS_PREFIX
from card.lookup import LONGEST_CONTEXT, TextLookup
from card.settings import SpeculationSettings


@dataclass(frozen=True, slots=True)
class Expansion:
    """Rows of a pass in order: `nodes`, then `guesses`.

    nodes    [nodes] int64, unexpanded nodes of the tree, or `ROOT` alone behind a text
    guesses  (row that the guess stands behind, guessed token), rows before their guesses
    """

    nodes: NDArray[np.int64]
    guesses: list[tuple[int, int]]

    @classmethod
    def of_root(cls, guessed: Sequence[int]) -> Expansion:
        """The text's end and a chain of guesses behind it."""
        return cls(np.array([ROOT]), list(enumerate(guessed)))

    @property
    def rows(self) -> int:
        return len(self.nodes) + len(self.guesses)

    @property
    def guessed(self) -> list[int]:
        return [token for _, token in self.guesses]

    def depths(self, tree: GrowingTree) -> NDArray[np.int64]:
        """[rows] depth of every row's token; -1 for the text's end."""
        depths = np.empty(self.rows, np.int64)
        depths[: len(self.nodes)] = [tree.depth_of(node) for node in self.nodes.tolist()]
        for row, (above, _) in enumerate(self.guesses, len(self.nodes)):
            depths[row] = depths[above] + 1
        return depths

    def tree_rows(self, tree: GrowingTree, pending: int) -> tuple[list[int], list[int]]:
        """Tokens and parents (pending KV entries) of the rows, which become `pending` and on."""
        above = tree.parent[self.nodes]
        parents = np.where(above == ROOT, FOLLOWS_PREFIX, tree.entry[above]).tolist()
        tokens = tree.token[self.nodes].tolist()
        return (
            [*tokens, *self.guessed],
            [*parents, *(pending + row for row, _ in self.guesses)],
        )


def choose_expansion(
    tree: GrowingTree,
    lookup: TextLookup,
    how: SpeculationSettings,
    depth: int,
    room: int,
) -> Expansion:
    """The best nodes by the growth rule, and a chain of guesses behind the likeliest of them.

    depth  the tree may run this far ahead of the text
    room   most rows, all told
    """
    width = min(how.width, room)
    if width < 1:
        return Expansion(np.empty(0, np.int64), [])
    nodes = RULES[how.growth](tree, width, depth)
    if not nodes.size:
        return Expansion(nodes, [])
    # Guesses cost rows, so they go where the tree most likely gets deeper.
    place = int(tree.score[nodes].argmax())
    node = int(nodes[place])
    length = min(how.lookahead, depth - 2 - tree.depth_of(node), room - len(nodes))
    guessed = lookup.guesses(_path(tree, node), max(0, length))
    above = [place, *range(len(nodes), len(nodes) + len(guessed))]
    return Expansion(nodes, list(zip(above, guessed, strict=False)))


def _path(tree: GrowingTree, node: int) -> list[int]:
    """Tokens from the root to `node`, as many as a guess may look at."""
    path: list[int] = []
    while node != ROOT and len(path) < LONGEST_CONTEXT:
        path.append(int(tree.token[node]))
        node = int(tree.parent[node])
    return path[::-1]

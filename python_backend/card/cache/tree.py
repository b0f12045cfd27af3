"""Candidate trees: what a draft published, copied, and checked before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from operator import lt

ROOT = -1
"""Parent of the nodes that follow the last token at the tree's root."""

_HIGHEST_SCORE = 1e-6
"""Log-probabilities are at most 0, but for rounding."""


def follow(
    token: Sequence[int], parent: Sequence[int], node: int, tokens: Sequence[int]
) -> list[int]:
    """Nodes below `node` along `tokens`, as far as the tree has them.

    token, parent  of every node; parents stand before their children
    """
    path: list[int] = []
    if not tokens:
        return path
    # Children stand behind their parents, so one look at every node finds the whole path.
    for child in range(node + 1, len(token)):
        if parent[child] == node and token[child] == tokens[len(path)]:
            path.append(child)
            node = child
            if len(path) == len(tokens):
                break
    return path


@dataclass(slots=True)
class Tree:
    """A snapshot of a candidate tree; parents stand before their children.

    root_length  committed tokens (prompt and output) that the root stands for
    token        token id of every node
    parent       of every node, another node or `ROOT`
    score        of every node, log-probability of the path from the root under the draft
    """

    root_length: int
    token: list[int]
    parent: list[int]
    score: list[float]

    @classmethod
    def checked(
        cls,
        root_length: int,
        token: list[int],
        parent: list[int],
        score: list[float],
        vocabulary: int,
    ) -> Tree | None:
        """The tree of these nodes; None unless every node can be trusted to be one:
        whoever wrote it, reading it is safe.

        Tokens lie in the vocabulary, parents stand before children (so there is no cycle) and
        scores are numbers. Whether the tokens are *likely* matters to speed alone.
        """
        is_sound = not token or (
            min(token) >= 0
            and max(token) < vocabulary
            and min(parent) >= ROOT
            and all(map(lt, parent, range(len(parent))))
            and max(score) <= _HIGHEST_SCORE
            and not any(map(isnan, score))
        )
        return cls(root_length, token, parent, score) if is_sound else None

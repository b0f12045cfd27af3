"""The query of CARD: the likeliest continuation in the draft's tree (arXiv 2508.04462, §3).

`SHAPES` names the shapes of a query: the best chain, or the best subtree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from card.cache import (
    LEAST_CHANCE,
    ROOT,
    Candidates,
    Tree,
    best_chain,
    best_subtree,
    descend,
    follow,
)
from card.speculation.sources.interface import QueriedSession, Source
from card.speculation.tree import ranked_below, score_exponent


@dataclass(frozen=True)
class Shape:
    """Chooses candidates below a node of a tree.

    is_chain  the shape is one path
    take      of (tree, node, limit, branches, exponent): at most `limit` candidates on at most
              `branches` paths. The tree's scores are ranks, sharpened by the exponent
    """

    is_chain: bool
    take: Callable[[Tree, int, int, int, float], Candidates]


SHAPES: dict[str, Shape] = {
    "chain": Shape(True, lambda tree, node, limit, _, power: best_chain(tree, node, limit, power)),
    "subtree": Shape(False, best_subtree),
}
"""Shapes by the value of the setting `speculation.query`."""


class TreeSource(Source):
    """Descends from the tree's root along the committed tokens, then takes the best candidates
    below."""

    needs_draft: ClassVar[bool] = True

    def __init__(self, query: str = "chain", branches: int = 1) -> None:
        self._shape = SHAPES[query]
        self._branches = branches

    def candidates(
        self, session: QueriedSession, behind: Candidates, limit: int, least: float = LEAST_CHANCE
    ) -> Candidates:
        if len(behind) or (found := _end_of_text(session)) is None:
            return behind
        exponent = _exponent(session)
        below = ranked_below(*found, exponent)
        return self._shape.take(below, ROOT, limit, self._branches, exponent)


def chain_ahead(session: QueriedSession, limit: int) -> tuple[int, bool]:
    """Number of tokens of the best chain below the text, at most `limit`, and whether a token of
    the chain has siblings."""
    if (found := _end_of_text(session)) is None:
        return 0, False
    (tree, node), exponent = found, _exponent(session)
    tokens = best_chain(ranked_below(tree, node, exponent), ROOT, limit, exponent).tokens
    path = follow(tree.token, tree.parent, node, tokens)
    return len(tokens), any(tree.parent.count(tree.parent[child]) > 1 for child in path)


def _exponent(session: QueriedSession) -> float:
    return score_exponent(greedy=session.request.parameters.is_greedy)


def _end_of_text(session: QueriedSession) -> tuple[Tree, int] | None:
    """The draft's tree, and its node for the last committed token; None if there is no such
    node."""
    tree, history = session.tree(), session.history
    if tree is None or tree.root_length > len(history):
        return None
    node = descend(tree, ROOT, history.tokens[max(0, tree.root_length) :])
    return None if node is None else (tree, node)

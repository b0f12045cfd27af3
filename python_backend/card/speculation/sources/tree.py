"""The query of CARD: the likeliest continuation in the draft's tree (arXiv 2508.04462, §3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from card.cache import (
    NO_CANDIDATES,
    ROOT,
    Candidates,
    Tree,
    best_chain,
    best_subtree,
    descend,
)
from card.speculation.acceptance import TargetRows, VerifyResult
from card.speculation.score import path_ranks, score_exponent
from card.speculation.sources.interface import QueriedSession

Shape = Callable[[Tree, int, int, int, float], Candidates]
"""Chooses at most `limit` candidates on at most `branches` paths below a node of a tree whose
scores are ranks; the last argument is the exponent that they were sharpened by."""


def chain(tree: Tree, node: int, limit: int, _: int, exponent: float) -> Candidates:
    """One path of the tree."""
    return best_chain(tree, node, limit, exponent)


SHAPES: dict[str, Shape] = {"chain": chain, "subtree": best_subtree}
"""By the value of the setting `speculation.query`."""


class TreeSource:
    """Walks from the tree's root along what is committed, then takes the best of what is below."""

    needs_draft: ClassVar[bool] = True

    def __init__(self, query: str = "chain", branches: int = 1) -> None:
        self._shape = SHAPES[query]
        self._branches = branches

    def candidates(self, session: QueriedSession, behind: Candidates, limit: int) -> Candidates:
        tree, history = session.tree(), session.history
        if len(behind) or tree is None or tree.root_length > len(history):
            return behind
        behind_root = history.tokens[max(0, tree.root_length) :].tolist()
        node = descend(tree, ROOT, behind_root)
        if node is None:
            return NO_CANDIDATES
        exponent = score_exponent(greedy=session.request.parameters.is_greedy)
        ranked = replace(tree, score=path_ranks(tree.score, tree.parent, exponent))
        return self._shape(ranked, node, limit, self._branches, exponent)

    def learn(
        self,
        session: QueriedSession,
        verified: Candidates,
        result: VerifyResult,
        rows: TargetRows,
    ) -> None: ...

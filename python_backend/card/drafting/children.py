"""The best children of forwarded rows, scored as the target will choose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from card.cache import ROOT
from card.drafting.tree import GrowingTree
from card.engines import Logits
from card.sampling import SamplingParameters, rank_candidates

_KEPT = 8
"""Children kept per row: the target's token is among the best 8 of a good draft in 99 of 100
cases."""

_PERTURBED = 64
"""Ids per row that are perturbed with the target's noise before the best are kept."""

_UNLIKELY = float(np.log(0.01))
"""Children less likely than this, given their parent, are not worth a node; the best one is."""


@dataclass(frozen=True, slots=True)
class Children:
    """ids and log-probabilities [rows, kept]; `worthy` says which become nodes."""

    ids: NDArray[np.int64]
    log_probability: NDArray[np.float64]
    worthy: NDArray[np.bool_]

    def add_to(
        self, tree: GrowingTree, parents: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> None:
        """Hang the worthy children of `rows` below the nodes `parents`, both [n]."""
        row, column = np.nonzero(self.worthy[rows])
        above = parents[row]
        scores = np.array([0.0 if p == ROOT else tree.score[p] for p in parents.tolist()])
        tree.add(
            self.ids[rows][row, column],
            above,
            self.log_probability[rows][row, column] + scores[row],
        )


def best_children(
    logits: Logits, positions: NDArray[np.int64], parameters: SamplingParameters
) -> Children:
    """Rank the ids of every row; `positions` [rows] are those at which the children stand."""
    ids, values = logits.best(_KEPT if parameters.is_greedy else _PERTURBED)
    ranked = rank_candidates(ids, values, np.zeros(len(ids), np.float32), positions, parameters)
    if ranked.shape[1] > _KEPT:
        best = np.argpartition(-ranked, _KEPT - 1, axis=1)[:, :_KEPT]
        ids = np.take_along_axis(ids, best, axis=1)
        ranked = np.take_along_axis(ranked, best, axis=1)
    worthy = ranked > _UNLIKELY
    worthy[np.arange(len(ranked)), ranked.argmax(axis=1)] = True
    return Children(ids, ranked, worthy)

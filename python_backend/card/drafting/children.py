"""The best children of forwarded rows, scored as the target will choose."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from card.engines import Logits
from card.sampling import SamplingParameters, rank_candidates

_KEPT = 8
"""Children kept per row: the target's token is among the best 8 of a good draft in 99 of 100
cases."""

_PERTURBED = 64
"""Ids per row that are perturbed with the target's noise before the best are kept."""

_UNLIKELY = math.log(0.01)
"""Children less likely than this, given their parent, are not worth a node; the best one is."""


class Child(NamedTuple):
    """A token and its log-probability given its parent, as the draft sees it."""

    token: int
    log_probability: float


def best_children(
    logits: Logits, positions: NDArray[np.int64], parameters: SamplingParameters
) -> list[list[Child]]:
    """The children of every row that are worth a node, likeliest first.

    positions  [rows] at which the children stand
    """
    ids, values = logits.best(_KEPT if parameters.is_greedy else _PERTURBED)
    ranked = rank_candidates(ids, values, np.zeros(len(ids), np.float32), positions, parameters)
    if not parameters.is_greedy:
        order = np.argsort(-ranked, axis=1, kind="stable")[:, :_KEPT]
        ids = np.take_along_axis(ids, order, axis=1)
        ranked = np.take_along_axis(ranked, order, axis=1)
    return [
        [
            Child(token, score)
            for rank, (token, score) in enumerate(zip(row_ids, row_scores, strict=True))
            if rank == 0 or score > _UNLIKELY
        ]
        for row_ids, row_scores in zip(ids.tolist(), ranked.tolist(), strict=True)
    ]

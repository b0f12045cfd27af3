"""The best children of forwarded rows, scored as the target will choose."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from card.engines import Logits, Ranking
from card.sampling import PositionNoise, SamplingParameters, rank_candidates

_KEPT = 8
"""Children kept per row: the target's token is among the best 8 of a good draft in 99 of 100
cases."""

_FILTERED_AMONG = 64
"""Likeliest ids per row among which top-k and top-p are judged before noise is added."""

_COLDEST = 1e-6
"""Temperatures below rank as this one does, and leave float32 room."""

_UNLIKELY = math.log(0.01)
"""Children less likely than this, given their parent, are not worth a node; the best one is."""


class Child(NamedTuple):
    """A token and its log-probability given its parent, as the draft sees it."""

    token: int
    log_probability: float


def ranking_of(
    positions: NDArray[np.int64], parameters: SamplingParameters, noise: PositionNoise
) -> Ranking:
    """What to ask the engine of rows whose children stand at `positions` (ignored if greedy).

    With the target's own noise over the whole vocabulary the draft mostly ranks first what the
    target will draw (Gumbel coupling, arXiv 2408.07978).
    """
    if parameters.is_greedy:
        return Ranking(_KEPT)
    if parameters.filters:
        return Ranking(_FILTERED_AMONG)
    return Ranking(_KEPT, max(parameters.temperature, _COLDEST), noise.rows(positions))


def best_children(
    logits: Logits, positions: NDArray[np.int64], parameters: SamplingParameters
) -> list[list[Child]]:
    """The children of every row that are worth a node, likeliest first.

    logits     of rows that were forwarded with `ranking_of` the same positions and parameters
    positions  [rows] at which the children stand (ignored if greedy)
    """
    ids, log_probabilities = logits.best()
    ranked = log_probabilities.astype(np.float64)
    if not parameters.is_greedy and parameters.filters:
        normalised = np.zeros(len(ids), np.float32)
        scores = rank_candidates(ids, log_probabilities, normalised, positions, parameters)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :_KEPT]
        ids = np.take_along_axis(ids, order, axis=1)
        ranked = np.take_along_axis(scores, order, axis=1)
    return [
        [
            Child(token, score)
            for rank, (token, score) in enumerate(zip(row_ids, row_scores, strict=True))
            if rank == 0 or score > _UNLIKELY
        ]
        for row_ids, row_scores in zip(ids.tolist(), ranked.tolist(), strict=True)
    ]

"""The best children of forwarded rows, scored as the target will choose."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from card.engines import Logits, Ranking
from card.sampling import PositionNoise, SamplingParameters, rank_candidates
from card.speculation.score import score_exponent

Child = tuple[int, float]
"""A token and its log-probability given its parent, as the draft sees it."""

_KEPT = 8
"""Children kept per row: the target's token is among the best 8 of a good draft in 99 of 100
cases."""

_FILTERED_AMONG = 64
"""Likeliest ids per row among which top-k and top-p are judged before noise is added."""

_COLDEST = 1e-6
"""Temperatures below rank as this one does, and leave float32 room."""

_UNLIKELY = math.log(0.01)
"""Children less likely than this, given their parent, are not worth a node; the best one is."""


def noise_for(parameters: SamplingParameters, vocabulary: int) -> PositionNoise:
    """The target's noise as `ranking_of` wants it."""
    return PositionNoise(parameters.seed, vocabulary, scale=_exponent(parameters))


def ranking_of(
    positions: list[int], parameters: SamplingParameters, noise: PositionNoise
) -> Ranking:
    """What to ask the engine of rows whose children stand at `positions` (ignored if greedy).

    With the target's own noise over the whole vocabulary the draft mostly ranks first what the
    target will draw (Gumbel coupling, arXiv 2408.07978).

    noise  of `noise_for`
    """
    if parameters.is_greedy:
        return Ranking(_KEPT, 1.0 / _exponent(parameters))
    if parameters.filters:
        return Ranking(_FILTERED_AMONG)
    temperature = max(parameters.temperature, _COLDEST) / _exponent(parameters)
    return Ranking(_KEPT, temperature, noise.rows(positions))


def best_children(
    logits: Logits, positions: list[int], parameters: SamplingParameters
) -> list[list[Child]]:
    """The children of every row that are worth a node, likeliest first.

    logits     of rows that were forwarded with `ranking_of` the same positions and parameters
    positions  of every row's children (ignored if greedy)
    """
    ids, log_probabilities = logits.best()
    ranked: NDArray[np.floating[Any]] = log_probabilities
    if not parameters.is_greedy and parameters.filters:
        ids, ranked = _filtered(ids, log_probabilities, positions, parameters)
    return [
        [child for child in zip(row_ids, row_scores, strict=True) if child[1] > _UNLIKELY]
        or [(row_ids[0], row_scores[0])]
        for row_ids, row_scores in zip(ids.tolist(), ranked.tolist(), strict=True)
    ]


def _filtered(
    ids: NDArray[np.int64],
    log_probabilities: NDArray[np.float32],
    positions: list[int],
    parameters: SamplingParameters,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The best ids [rows, kept] that top-k and top-p leave, and their log-probabilities."""
    normalised = np.zeros(len(ids), np.float32)
    places = np.array(positions, np.int64)
    scores = rank_candidates(ids, log_probabilities, normalised, places, parameters)
    scores *= _exponent(parameters)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :_KEPT]
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1)


def _exponent(parameters: SamplingParameters) -> float:
    return score_exponent(greedy=parameters.is_greedy)

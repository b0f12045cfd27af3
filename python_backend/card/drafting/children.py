"""The best children of forwarded rows, scored as the target will choose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from card.confidence import confidence_in
from card.engines import Logits, Ranking
from card.sampling import PositionNoise, SamplingParameters, biased, rank_candidates

Child = tuple[int, float]
"""A token and its log-probability given its parent, as the draft sees it."""

Masks = Sequence[NDArray[np.bool_]]
"""Which ids may be children of each row, [vocabulary] of every row."""

_NEVER = np.float32(-1e30)
"""Added to the logit of an id that may be no child: as good as impossible, and finite."""

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
    """The target's noise and the request's bias as `ranking_of` wants them."""
    drawn = not (parameters.is_greedy or parameters.filters)
    bias = None
    if parameters.logit_bias:
        bias = biased(np.zeros(vocabulary, np.float32), parameters)
        bias /= np.float32(_temperature(parameters))
    return PositionNoise(
        parameters.seed, vocabulary, _confidence(parameters) if drawn else 0.0, bias
    )


def ranking_of(
    positions: list[int],
    parameters: SamplingParameters,
    noise: PositionNoise,
    masks: Masks | None = None,
) -> Ranking:
    """What to ask the engine of rows whose children stand at `positions` (ignored if greedy).

    With the target's own noise over the whole vocabulary the draft mostly ranks first what the
    target will draw (Gumbel coupling, arXiv 2408.07978).

    noise  of `noise_for`
    masks  which ids may be children of each row; None: all of every row
    """
    adds = parameters.logit_bias or not (parameters.is_greedy or parameters.filters)
    added = noise.rows(positions) if adds else None
    if masks is not None:
        added = _masked(added, masks)
    return Ranking(
        _FILTERED_AMONG if _is_filtered(parameters) else _KEPT, _temperature(parameters), added
    )


def _masked(added: list[NDArray[np.float32]] | None, masks: Masks) -> list[NDArray[np.float32]]:
    """What is added to each row's logits, so that the allowed ids alone are likely."""
    if added is None:
        return [np.where(mask, np.float32(0), _NEVER) for mask in masks]
    return [np.where(mask, row, _NEVER) for row, mask in zip(added, masks, strict=True)]


def best_children(
    logits: Logits,
    positions: list[int],
    parameters: SamplingParameters,
    masks: Masks | None = None,
) -> list[list[Child]]:
    """The children of every row that are worth a node, likeliest first.

    logits     of rows that were forwarded with `ranking_of` the same other arguments
    positions  of every row's children (ignored if greedy)
    """
    ids, log_probabilities = logits.best()
    ranked: NDArray[np.floating[Any]] = log_probabilities
    if _is_filtered(parameters):
        ids, ranked = _filtered(ids, log_probabilities, positions, parameters)
    children = [
        [child for child in zip(row_ids, row_scores, strict=True) if child[1] > _UNLIKELY]
        or [(row_ids[0], row_scores[0])]
        for row_ids, row_scores in zip(ids.tolist(), ranked.tolist(), strict=True)
    ]
    if masks is None:
        return children
    return [
        [(token, score) for token, score in row if mask[token]]
        for row, mask in zip(children, masks, strict=True)
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
    scores *= _confidence(parameters)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :_KEPT]
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1)


def _is_filtered(parameters: SamplingParameters) -> bool:
    return not parameters.is_greedy and parameters.filters


def _temperature(parameters: SamplingParameters) -> float:
    """At which the engine ranks; filters look at the logits as they are."""
    if _is_filtered(parameters):
        return 1.0
    if parameters.is_greedy:
        return 1.0 / _confidence(parameters)
    return max(parameters.temperature, _COLDEST) / _confidence(parameters)


def _confidence(parameters: SamplingParameters) -> float:
    return confidence_in(greedy=parameters.is_greedy)

"""The best children of forwarded rows, under the noise that the target will choose with."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from card.engines import Logits, Ranking
from card.sampling import PositionNoise, SamplingParameters, rank_candidates
from card.speculation.score import score_exponent, sharpened


class Child(NamedTuple):
    """One token below a row.

    logprob  given the row, as the draft sees it
    rank     `logprob` sharpened: what the tree grows by
    """

    token: int
    logprob: float
    rank: float


_KEPT = 8
"""Children kept per row: the target's token is among the best 8 of a good draft in 99 of 100
cases."""

_FILTERED_AMONG = 64
"""Likeliest ids per row among which top-k and top-p are judged before noise is added."""

_COLDEST = 1e-6
"""Temperatures below rank as this one does, and leave float32 room."""

_UNLIKELY = math.log(0.01)
"""Children that rank below this are not worth a node; the best one is."""


def noise_for(parameters: SamplingParameters, vocabulary: int) -> PositionNoise:
    """The target's noise as `ranking_of` wants it."""
    return PositionNoise(parameters.seed, vocabulary)


def ranking_of(
    positions: list[int], parameters: SamplingParameters, noise: PositionNoise
) -> Ranking:
    """What to ask the engine of rows whose children stand at `positions` (ignored if greedy).

    With the target's own noise over the whole vocabulary the draft mostly ranks first what the
    target will draw (Gumbel coupling, arXiv 2408.07978).

    noise  of `noise_for`
    """
    if parameters.is_greedy:
        return Ranking(_KEPT)
    if parameters.filters:
        return Ranking(_FILTERED_AMONG)
    temperature = max(parameters.temperature, _COLDEST)
    return Ranking(_KEPT, temperature, noise.rows(positions))


def best_children(
    logits: Logits, positions: list[int], parameters: SamplingParameters
) -> list[list[Child]]:
    """The children of every row that are worth a node, likeliest first.

    logits     of rows that were forwarded with `ranking_of` the same positions and parameters
    positions  of every row's children (ignored if greedy)
    """
    ids, found = logits.best()
    logprobs: NDArray[np.float64] = np.minimum(found, 0.0).astype(np.float64)
    if not parameters.is_greedy and parameters.filters:
        ids, logprobs = _filtered(ids, found, positions, parameters)
    above = np.repeat(np.arange(len(ids)), ids.shape[1])
    exponent = score_exponent(greedy=parameters.is_greedy)
    ranks = sharpened(logprobs.ravel(), above, exponent).reshape(ids.shape)
    return [
        [child for child in children if child.rank > _UNLIKELY] or children[:1]
        for row in zip(ids.tolist(), logprobs.tolist(), ranks.tolist(), strict=True)
        if (children := list(map(Child, *row)))
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
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :_KEPT]
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1)

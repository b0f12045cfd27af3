"""The draft's side: the target's noise at the places of its candidates, and their probabilities.

This module ranks candidates. It never chooses a token.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from card.sampling.choice import SamplingParameters
from card.sampling.noise import gumbel

FILTERED: Final = -100.0
"""Log-probability of a candidate that min-p, top-k or top-p removes: practically impossible, but
finite, so that cumulative log-probabilities stay comparable."""


def rank_candidates(
    ids: NDArray[np.int64],
    logits: NDArray[np.float32],
    log_normaliser: NDArray[np.float32],
    positions: NDArray[np.int64],
    parameters: SamplingParameters,
) -> NDArray[np.float64]:
    """Log-probability [rows, k] that the target chooses each candidate, under the draft.

    Greedy: log-softmax of the draft's logits. Sampled: the draft perturbs its logits with the noise
    that the target will use (Gumbel coupling), so the two mostly pick the same id, and takes the
    log-softmax of the k perturbed logits. Min-p, top-k and top-p apply to the k candidates. This
    function only ranks candidates; it never chooses a token.

    Args:
        ids: [rows, k], the k best ids of each row.
        logits: [rows, k], the draft's logits of these ids.
        log_normaliser: [rows], log of the sum of exp over the whole row of logits.
        positions: [rows], the absolute position at which the candidates of the row stand.
        parameters: the session's.
    """
    if parameters.is_greedy:
        return np.subtract(logits, log_normaliser[:, None], dtype=np.float64)
    temperature = max(parameters.temperature, 1e-20)
    perturbed = np.subtract(logits, logits.max(axis=1, keepdims=True), dtype=np.float64)
    perturbed /= temperature
    perturbed += gumbel(parameters.seed, positions[:, None], ids)
    removed = _removed(logits, temperature, parameters)
    if removed is not None:
        perturbed[removed] = -np.inf
    perturbed -= perturbed.max(axis=1, keepdims=True)
    perturbed -= np.log(np.exp(perturbed).sum(axis=1, keepdims=True))
    if removed is not None:
        perturbed[removed] = FILTERED
    return perturbed


def _removed(
    logits: NDArray[np.float32], temperature: float, parameters: SamplingParameters
) -> NDArray[np.bool_] | None:
    """Which candidates [rows, k] min-p, top-k and top-p remove; None if all are off."""
    keeps = min(parameters.top_k or logits.shape[1], logits.shape[1])
    by_mass = 0.0 < parameters.top_p < 1.0
    if keeps == logits.shape[1] and not by_mass and not parameters.min_p:
        return None
    descending = np.sort(logits, axis=1)[:, : -keeps - 1 : -1]
    last = np.full(len(logits), keeps - 1)
    if parameters.min_p:
        least = descending[:, :1] + temperature * math.log(parameters.min_p)
        last = (descending >= least).sum(axis=1) - 1
        descending = np.where(descending >= least, descending, -np.inf)
    if by_mass:
        weights = np.exp((descending - descending[:, :1]) / temperature)
        reached = weights.cumsum(axis=1)
        last = (reached - weights < parameters.top_p * reached[:, -1:]).sum(axis=1) - 1
    removed: NDArray[np.bool_] = logits < descending[np.arange(len(logits)), last, None]
    return removed

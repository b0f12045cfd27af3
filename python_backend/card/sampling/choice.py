"""The one function that chooses a token, and the changes of a row before the choice.

Order: logit bias; repetition, presence and frequency penalties; bans (``min_tokens``, bad words);
temperature; min-p, top-k, top-p; noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from card.sampling.filters import min_p_indices, top_k_indices, top_p_indices
from card.sampling.noise import LARGEST_NOISE, least_bits, noise_of, position_key, uniform_bits
from card.sampling.parameters import History, SamplingParameters


def biased(logits: NDArray[np.float32], parameters: SamplingParameters) -> NDArray[np.float32]:
    """The row [vocab] with the request's bias added, in order where an id is named twice.

    Returns the row itself without a bias, else a copy.

    Raises:
        IndexError: an id of the bias does not lie in the vocabulary.
    """
    if not parameters.logit_bias:
        return logits
    row = logits.copy()
    for token, bias in parameters.logit_bias:
        row[token] += np.float32(bias)
    return row


def penalised(
    logits: NDArray[np.float32], history: History, parameters: SamplingParameters
) -> NDArray[np.float32]:
    """The row [vocab] with the penalties for every token of prompt and output.

    Returns the row itself when no penalty is on, else a copy.
    """
    if not parameters.penalises or not len(history):
        return logits
    ids, counts = history.token_counts(logits.size)
    seen = logits[ids].astype(np.float64)
    if parameters.repetition_penalty != 1.0:
        penalty = parameters.repetition_penalty
        seen = np.where(seen > 0.0, seen / penalty, seen * penalty)
    seen -= parameters.presence_penalty
    seen -= parameters.frequency_penalty * counts
    row = logits.copy()
    row[ids] = seen
    return row


def banned_ids(history: History, parameters: SamplingParameters) -> list[int]:
    """Ids that may not come next: early ``end_ids``, and every id that completes a bad word."""
    banned: list[int] = []
    if history.generated < parameters.min_tokens:
        banned += parameters.end_ids
    if parameters.bad_words:
        longest = max(map(len, parameters.bad_words))
        recent = tuple(history.tokens[max(0, len(history) - longest + 1) :])
        for word in parameters.bad_words:
            start = len(word) - 1
            if start == 0 or recent[-start:] == word[:-1]:
                banned.append(word[-1])
    return banned


def without(logits: NDArray[np.float32], banned: list[int]) -> NDArray[np.float32]:
    """A copy of the row [vocab] in which the banned ids cannot be chosen."""
    row = logits.copy()
    row[banned] = -np.inf
    return row


_LEAST: Final = float(np.finfo(np.float32).min)
_LOWEST_TEMPERATURE: Final = 1e-20  # below it a difference of logits could overflow
_NEAR: Final = 5.0  # nats below the best (after temperature) that are perturbed first
_FEW: Final = 384  # perturbing this many ids is faster than selecting among them


class InvalidLogitsError(ValueError):
    """A row's largest logit is NaN or infinite: the model's output is broken."""


def sample(
    logits: NDArray[np.float32],
    history: History,
    parameters: SamplingParameters,
    allowed: NDArray[np.bool_] | None = None,
) -> int:
    """The token that follows ``history``.

    Args:
        logits: [vocab], the row for the token at absolute position ``len(history)``; it is not
            changed. The choice depends only on this row and the other arguments.
        history: prompt and output so far.
        parameters: how to choose. The logit bias comes first, then penalties, bans, temperature,
            min-p, top-k, top-p. Ties go to the lowest id. If the bans (bad words and early
            ``end_ids``) would leave no id at all, they are ignored for this token.
        allowed: [vocab], the ids that may be chosen whatever else is asked for, at least one of
            them; None: all.

    Raises:
        InvalidLogitsError: the largest logit is NaN or infinite.
    """
    row = penalised(biased(logits, parameters), history, parameters)
    if allowed is not None:
        row = np.where(allowed, row, np.float32(-np.inf))
    banned = banned_ids(history, parameters)
    if banned:
        left = without(row, banned)
        if left.max() != -np.inf:
            row = left
    best = int(row.argmax())
    if not math.isfinite(row.item(best)):
        raise InvalidLogitsError(
            f"the largest logit at position {len(history)} is {row.item(best)} (token {best}); "
            "the model's output is broken: check its weights and dtype"
        )
    if parameters.is_greedy:
        return best
    temperature = max(parameters.temperature, _LOWEST_TEMPERATURE)
    key = position_key(parameters.seed, len(history))
    kept = _kept_ids(row, temperature, parameters)
    if kept is None:
        return _perturbed_argmax(row, row.item(best), temperature, key)
    return _best_of(kept, row, row.item(best), temperature, key)[1]


def log_probability(logits: NDArray[np.float32], token: int) -> float:
    """Log-probability (natural) of ``token`` under softmax of the unprocessed row [vocab], fp32."""
    shifted = logits - logits.max()
    chosen = shifted[token]
    return float(chosen - np.log(np.exp(shifted, out=shifted).sum()))


def _kept_ids(
    row: NDArray[np.float32], temperature: float, parameters: SamplingParameters
) -> NDArray[np.int64] | None:
    """The ids, ascending, that min-p, top-k and top-p leave of the row, each of what the one before
    left; None if all are off."""
    kept = None
    if parameters.min_p > 0.0:
        kept = min_p_indices(row, temperature, parameters.min_p)
    if 0 < parameters.top_k < (row.size if kept is None else kept.size):
        values = row if kept is None else row[kept]
        likeliest = top_k_indices(values, parameters.top_k)
        kept = likeliest if kept is None else kept[likeliest]
    if 0.0 < parameters.top_p < 1.0:
        values = row if kept is None else row[kept]
        nucleus = top_p_indices(values, temperature, parameters.top_p)
        kept = nucleus if kept is None else kept[nucleus]
    return kept


def _perturbed_argmax(
    row: NDArray[np.float32], largest: float, temperature: float, key: NDArray[np.uint64]
) -> int:
    """The id with the largest perturbed logit, found without perturbing those that cannot win.

    The ids near the top are perturbed first. Any other needs more noise than separates it from
    the best of these, and the largest possible noise rules most out by their logit alone. For the
    rest the uniform's bits are drawn, and only the few that are high enough become noise.
    """
    if row.size <= _FEW:
        return _best_of(np.arange(row.size), row, largest, temperature, key)[1]
    cut = _float32(largest - _NEAR * temperature)
    near = (row >= cut).nonzero()[0]
    score, winner = _best_of(near, row, largest, temperature, key)
    # Thresholds err on the low side, which costs a few more ids and keeps the result exact.
    reach = (LARGEST_NOISE - score) * temperature
    floor = _float32(largest - reach - 1e-6 * (abs(largest) + abs(reach)))
    rest = (row >= floor).nonzero()[0]
    if rest.size <= near.size:
        return winner
    missing = score - (float(cut) - largest) / temperature
    rest = rest[uniform_bits(key, rest) >= least_bits(missing)]
    rest = rest[row[rest] < cut]
    if rest.size:
        other_score, other = _best_of(rest, row, largest, temperature, key)
        if (other_score, -other) > (score, -winner):
            return other
    return winner


def _float32(threshold: float) -> np.float32:
    """The threshold, or the least number there is if it lies below that."""
    return np.float32(max(threshold, _LEAST))


def _best_of(
    ids: NDArray[np.int64],
    row: NDArray[np.float32],
    largest: float,
    temperature: float,
    key: NDArray[np.uint64],
) -> tuple[float, int]:
    """Largest perturbed logit among ``ids`` [n], ascending, and the lowest id that has it."""
    scores = np.subtract(row[ids], largest, dtype=np.float64)
    scores /= temperature
    scores += noise_of(uniform_bits(key, ids))
    best = int(scores.argmax())
    return scores.item(best), ids.item(best)


@dataclass(frozen=True, slots=True, eq=False)
class Likeliest:
    """The likeliest ids of one row, likeliest first.

    ids                [count] int64; the lower id first where two are equally likely
    log_probabilities  [count] float32, natural, under softmax of the unprocessed logits
    """

    ids: NDArray[np.int64]
    log_probabilities: NDArray[np.float32]


def likeliest(logits: NDArray[np.float32], count: int) -> Likeliest:
    """The ``count`` likeliest ids of a row [vocab], all of them if there are fewer."""
    # The same arithmetic as `log_probability`, because clients compare the two numbers.
    shifted = logits - logits.max()
    normaliser = np.log(np.exp(shifted).sum())
    count = min(count, logits.size)
    # All ids that tie with the last one are candidates; the lowest ids win.
    cut = np.partition(logits, logits.size - count)[logits.size - count]
    ids = (logits >= cut).nonzero()[0]
    ids = ids[np.argsort(-logits[ids], kind="stable")][:count]
    return Likeliest(ids, shifted[ids] - normaliser)

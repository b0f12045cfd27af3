"""The likeliest ids of a row: which of them may be chosen at all, and which are reported.

Top-k and top-p look at the row's head alone, the values that lie within some reach of the largest,
and widen the reach only if the head turns out too small. Whatever the reach, the result equals that
of sorting the whole row by (value, then lower id).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_REACHES: Final = (3.0, 9.0, 27.0)
_MOST_SORTED: Final = 1024


def kept_ids(
    row: NDArray[np.float32], temperature: float, min_p: float, top_k: int, top_p: float
) -> NDArray[np.int64] | None:
    """The ids, ascending, that min-p, top-k and top-p leave of the row [vocab], each of those that
    the filter before left; None if all are off."""
    kept = None
    if min_p > 0.0:
        kept = min_p_indices(row, temperature, min_p)
    if 0 < top_k < (row.size if kept is None else kept.size):
        likeliest = top_k_indices(row if kept is None else row[kept], top_k)
        kept = likeliest if kept is None else kept[likeliest]
    if 0.0 < top_p < 1.0:
        nucleus = top_p_indices(row if kept is None else row[kept], temperature, top_p)
        kept = nucleus if kept is None else kept[nucleus]
    return kept


def min_p_indices(
    values: NDArray[np.float32], temperature: float, min_p: float
) -> NDArray[np.int64]:
    """Ascending indices of ``values`` [n] with a probability under softmax(values / temperature)
    of at least ``min_p`` (above 0, at most 1) times the largest; never empty."""
    least = float(values.max()) + temperature * math.log(min_p)
    kept: NDArray[np.int64] = (values.astype(np.float64) >= least).nonzero()[0]
    return kept


def top_k_indices(values: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Ascending indices [min(k, n)] of the k largest of ``values`` [n]; ties to the lowest."""
    if k >= values.size:
        return np.arange(values.size)
    for head in _heads(values, float(values.max()), 1.0):
        if head.size >= k:
            break
    return head[_largest(values[head], k)]


def top_p_indices(
    values: NDArray[np.float32], temperature: float, top_p: float
) -> NDArray[np.int64]:
    """Ascending indices of the nucleus of softmax(``values`` [n] / temperature).

    The nucleus is the shortest run of the largest values that reaches a probability of ``top_p``;
    among equal values the lowest index comes first; it is never empty.
    """
    if values.size == 1:
        return np.arange(1)
    largest = float(values.max())
    # Weights are whole numbers that add up to less than 2**53, so that every sum of them is exact
    # and no order of adding can move the cut.
    unit = 2.0 ** (53 - values.size.bit_length())
    weights = _weights(values, largest, temperature, unit)
    goal = top_p * float(weights.sum())
    for head in _heads(values, largest, temperature):
        if weights[head].sum() >= goal:
            break
    if head.size == 1:
        return head
    inside = values[head]
    return head[_above(inside, *_nucleus(inside, weights[head], goal))]


def _nucleus(
    values: NDArray[np.float32], weights: NDArray[np.float64], goal: float
) -> tuple[np.float32, int]:
    """The least value and the size of the shortest run of the largest ``values`` [n] with
    ``weights`` [n] that reach ``goal``; of all of them if they do not.

    It halves the range in which the least value lies until few values are left: sorting a whole
    vocabulary would take all sessions of the pass milliseconds.
    """
    above, within, reached = 0, values.size, 0.0
    least, most = values.min(), values.max()
    while within - above > _MOST_SORTED:
        with np.errstate(invalid="ignore", over="ignore"):  # of banned ids, which have no middle
            middle = least + (most - least) * np.float32(0.5)
        if not least < middle < most:
            break
        is_upper = values >= middle
        mass, count = float((weights * is_upper).sum()), int(np.count_nonzero(is_upper))
        if mass >= goal:
            least, within = middle, count
        else:
            most, above, reached = middle, count, mass
    left = values >= least
    if above:
        left &= values < most
    values, weights = values[left], weights[left]
    order = np.argsort(values)[::-1]
    size = min(int((reached + weights[order].cumsum()).searchsorted(goal)) + 1, values.size)
    return values[order[size - 1]], above + size


def _heads(
    values: NDArray[np.float32], largest: float, scale: float
) -> Iterator[NDArray[np.int64]]:
    """Ascending indices of the values near the largest, from few of them to all."""
    for reach in _REACHES:
        with np.errstate(over="ignore"):  # at the hottest temperatures it is below all numbers
            least = np.float32(largest - reach * scale)
        yield (values >= least).nonzero()[0]
    yield np.arange(values.size)


def _largest(values: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Ascending indices [count] of the largest of ``values`` [n]; ties to the lowest index."""
    return _above(values, np.sort(values)[values.size - count], count)


def _above(values: NDArray[np.float32], cut: np.float32, count: int) -> NDArray[np.int64]:
    """Ascending indices [count] of the largest of ``values`` [n], of which ``cut`` is the least;
    ties to the lowest index."""
    kept: NDArray[np.int64] = (values >= cut).nonzero()[0]
    if kept.size > count:
        tied = (values[kept] == cut).nonzero()[0]
        kept = np.delete(kept, tied[tied.size - (kept.size - count) :])
    return kept


def _weights(
    values: NDArray[np.float32], largest: float, temperature: float, unit: float
) -> NDArray[np.float64]:
    """``exp((values - largest) / temperature)`` [n] as a whole number of units, at most one."""
    weights: NDArray[np.float64] = np.subtract(values, largest, dtype=np.float64)
    weights *= 1.0 / temperature
    np.exp(weights, out=weights)
    weights *= unit
    np.rint(weights, out=weights)
    return weights


def log_probability(logits: NDArray[np.float32], token: int) -> float:
    """Log-probability (natural) of ``token`` under softmax of the unprocessed row [vocab], fp32."""
    shifted = logits - logits.max()
    chosen = shifted[token]
    return float(chosen - np.log(np.exp(shifted, out=shifted).sum()))


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

"""How candidates are ranked: by the draft's log-probabilities, sharpened.

The target takes the best of its scores, not a draw from them, so the draft's likeliest token is
right more often than its softmax says, most of all where nothing is drawn. So every probability is
raised to an exponent, and what may follow one node is normalised again: with that a tree goes
deeper where it should (benchmarks/NOTES.md). A rank divided by the exponent comes true as a chance.

Trees hold log-probabilities as the draft has them. Whoever ranks candidates sharpens them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_GREEDY = 3.0
_SAMPLED = 2.0


def score_exponent(*, greedy: bool) -> float:
    """The exponent for a text that is decoded greedily, or sampled."""
    return _GREEDY if greedy else _SAMPLED


def sharpened(logprobs: Sequence[float], exponent: float) -> list[float]:
    """Log-probabilities of `p ** exponent`, normalised over what stands below one node.

    Of the tokens that are not told only their share is known. None of them is likelier than the
    least likely one that is told, so they count as that likely each, or as their share.

    logprobs  [nodes] of its children given the node, at most 0
    """
    if not logprobs:
        return []
    # A dozen numbers for each row of a draft pass: NumPy takes longer to begin.
    probabilities = [math.exp(value) for value in logprobs]
    rest = max(1.0 - sum(probabilities), 0.0)
    total = sum(probability**exponent for probability in probabilities)
    total += rest * min(rest, *probabilities) ** (exponent - 1.0)
    if not total > 0.0:  # nothing is likely enough for a number, or one is none
        return [-math.inf] * len(logprobs)
    norm = math.log(total)
    return [exponent * value - norm for value in logprobs]


def path_ranks(score: Sequence[float], parent: Sequence[int], exponent: float) -> list[float]:
    """The rank of every node of a tree: the sum of `sharpened` along its path.

    score   [nodes] log-probability of the path from the root
    parent  [nodes] a node, or -1 for the root; parents stand before their children
    """
    if not score:
        return []
    scores, above = np.array(score, np.float64), np.array(parent, np.int64) + 1
    with np.errstate(invalid="ignore", over="ignore"):
        given = np.minimum(scores - np.concatenate([[0.0], scores])[above], 0.0)
    given[np.isnan(given)] = -np.inf
    ranks = [0.0]
    for at, rank in zip(
        above.tolist(), _sharpened_below(given, above, exponent).tolist(), strict=True
    ):
        ranks.append(ranks[at] + rank)
    return ranks[1:]


def _sharpened_below(
    logprobs: NDArray[np.float64], above: NDArray[np.int64], exponent: float
) -> NDArray[np.float64]:
    """`sharpened` for all nodes of a tree at once.

    logprobs  [nodes] of each node given the one above it, at most 0
    above     [nodes] number of that one, from 0
    """
    probabilities = np.exp(logprobs)
    groups = int(above.max(initial=-1)) + 1
    rest = np.maximum(1.0 - np.bincount(above, probabilities, groups), 0.0)
    least = np.ones(groups)
    np.minimum.at(least, above, probabilities)
    total = np.bincount(above, probabilities**exponent, groups)
    total += rest * np.minimum(least, rest) ** (exponent - 1.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found: NDArray[np.float64] = exponent * logprobs - np.log(total)[above]
    # Where nothing is likely enough for a number, nothing ranks at all.
    found[np.isnan(found) | (total[above] <= 0.0)] = -np.inf
    return found

"""Reported log-probabilities, under the unprocessed logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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

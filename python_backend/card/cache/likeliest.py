"""The likeliest ids of a position, one word each: the id above, the log-probability below."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from card.sampling import Likeliest

NO_ID = -1
"""Fills the words of a position that has fewer ids."""


def packed(found: Likeliest, count: int) -> NDArray[np.int64]:
    """[count] int64 words."""
    words = np.full(count, NO_ID, np.int64)
    ids = found.ids[:count]
    low = found.log_probabilities[:count].astype(np.float32).view(np.uint32).astype(np.int64)
    words[: len(ids)] = (ids << 32) | low
    return words


def unpacked(words: NDArray[np.int64]) -> list[tuple[int, float]]:
    """Ids and log-probabilities of one position's words, likeliest first."""
    known = words[words != NO_ID]
    low = (known & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
    return list(zip((known >> 32).tolist(), low.tolist(), strict=True))

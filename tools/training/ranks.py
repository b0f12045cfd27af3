"""How often a draft foresaw its target, from the ranks that it gave the target's tokens."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Ranks = npt.NDArray[np.int64]
"""The draft's rank, int64 [tokens], of every token of one text; 0 where it is its own choice."""


def ideal_tokens_per_step(ranks: Iterable[Ranks], rows: int) -> float:
    """Mean tokens per target pass of ``rows`` rows if the draft's best chain is always ready.

    Each pass verifies ``rows - 1`` candidates: it commits those before the first disagreement,
    and one token of the target's own. Replayed on the texts, so runs of agreement count as
    they really came.
    """
    tokens = passes = 0
    for text in ranks:
        place = 0
        while place < len(text):
            candidates = text[place : place + rows - 1]
            disagreements = np.flatnonzero(candidates)
            accepted = int(disagreements[0]) if len(disagreements) else len(candidates)
            place += accepted + 1
            passes += 1
        tokens += len(text)
    return tokens / passes

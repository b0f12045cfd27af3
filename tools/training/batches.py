"""Which tokens a step sees: a function of the seed and the step alone, so that runs resume."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from training.errors import TrainingError
from training.tokenization import Tokens

Batch = npt.NDArray[np.int64]


def corpus_batch(tokens: Tokens, step: int, batch: int, context: int, seed: int) -> Batch:
    """The sequences of one step, int64 [batch, context + 1].

    Every pass over the corpus shuffles its windows anew and shifts where they begin.

    Raises:
        TrainingError: ``tokens`` does not hold two windows.
    """
    windows = (len(tokens) - 1) // context - 1
    if windows < 1:
        raise TrainingError(
            f"the corpus has {len(tokens)} tokens, at least {2 * context + 1} are needed for a "
            f"context of {context}: name more folders with --source"
        )
    rows = np.empty((batch, context + 1), dtype=np.int64)
    for row in range(batch):
        lap, place = divmod(step * batch + row, windows)
        order, shift = _lap(windows, context, seed, lap)
        start = int(order[place]) * context + shift
        rows[row] = tokens[start : start + context + 1]
    return rows


def text_batch(texts: npt.NDArray[np.int32], step: int, batch: int, seed: int) -> Batch:
    """``batch`` of the rows of ``texts`` [texts, length], each once before any comes again."""
    indices = [
        _lap(len(texts), 1, seed, lap)[0][place]
        for lap, place in (divmod(step * batch + row, len(texts)) for row in range(batch))
    ]
    return texts[indices].astype(np.int64)


@lru_cache(maxsize=8)
def _lap(windows: int, context: int, seed: int, lap: int) -> tuple[npt.NDArray[np.int64], int]:
    generator = np.random.default_rng((seed, lap))
    return generator.permutation(windows), int(generator.integers(context))

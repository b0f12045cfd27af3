"""What a request changes in a row of logits before a token is chosen from it.

Order: logit bias, repetition, presence and frequency penalties, then bans (``min_tokens``, bad
words).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from card.sampling.history import History
from card.sampling.parameters import SamplingParameters


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

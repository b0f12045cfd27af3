"""The tokens that a session has seen and written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class History:
    """Prompt and output tokens of one session in a buffer of fixed capacity.

    Appending allocates nothing. How often each token occurred is counted only once somebody asks,
    and from then on one token at a time.
    """

    __slots__ = (
        "_counted",
        "_counts",
        "_distinct",
        "_distinct_length",
        "_tokens",
        "length",
        "prompt_length",
    )

    def __init__(self, prompt: NDArray[np.int64] | Sequence[int], capacity: int) -> None:
        """Copies ``prompt`` [prompt_length] into a buffer for ``capacity`` tokens in all.

        Raises:
            ValueError: the prompt is longer than the capacity.
        """
        if len(prompt) > capacity:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens, the history holds {capacity}; "
                "give it a larger capacity"
            )
        self._tokens: NDArray[np.int64] = np.empty(capacity, np.int64)
        self._tokens[: len(prompt)] = prompt
        self.length = self.prompt_length = len(prompt)
        self._counts: NDArray[np.int64] = np.empty(0, np.int64)  # [vocabulary]
        self._distinct: NDArray[np.int64] = np.empty(0, np.int64)  # ids in order of first use
        self._distinct_length = 0
        self._counted = 0  # tokens that the counts already include

    def __len__(self) -> int:
        return self.length

    @property
    def tokens(self) -> NDArray[np.int64]:
        """View [length] of all tokens so far."""
        return self._tokens[: self.length]

    @property
    def generated(self) -> int:
        """Number of tokens after the prompt."""
        return self.length - self.prompt_length

    def append(self, token: int) -> None:
        """Adds one output token. Raises IndexError when the capacity is used up."""
        self._tokens[self.length] = token
        self.length += 1

    def cut(self, length: int) -> None:
        """Leaves the first ``length`` tokens, the prompt at least."""
        self.length = length
        if self._counted > length:
            self._counts = np.empty(0, np.int64)  # counted anew when somebody asks

    def token_counts(self, vocabulary: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The distinct ids seen so far and how often each occurred, both [distinct].

        Raises IndexError if a token does not lie in the vocabulary.
        """
        if self._counts.size != vocabulary:
            self._counts = np.zeros(vocabulary, np.int64)
            self._distinct = np.empty(min(vocabulary, self._tokens.size), np.int64)
            self._distinct_length = self._counted = 0
        if self._counted < self.length:
            self._count_new_tokens()
        ids = self._distinct[: self._distinct_length]
        return ids, self._counts[ids]

    def _count_new_tokens(self) -> None:
        counts = self._counts
        for token in self._tokens[self._counted : self.length].tolist():
            if counts[token] == 0:
                self._distinct[self._distinct_length] = token
                self._distinct_length += 1
            counts[token] += 1
        self._counted = self.length

"""The tokens that a session has seen and written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class History:
    """Prompt and output tokens of one session.

    tokens         all so far; changed by the methods alone. A list, because a pass reads a few of
                   them one by one
    prompt_length  of these

    How often each token occurred is counted only once somebody asks, and from then on one token at
    a time.
    """

    __slots__ = (
        "_capacity",
        "_counted",
        "_counts",
        "_distinct",
        "_distinct_length",
        "prompt_length",
        "tokens",
    )

    def __init__(self, prompt: NDArray[np.int64] | Sequence[int], capacity: int) -> None:
        """Begins with ``prompt`` [prompt_length]; there is room for ``capacity`` tokens in all.

        Raises:
            ValueError: the prompt is longer than the capacity.
        """
        if len(prompt) > capacity:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens, the history holds {capacity}; "
                "give it a larger capacity"
            )
        self.tokens: list[int] = np.asarray(prompt, np.int64).tolist()
        self.prompt_length = len(prompt)
        self._capacity = capacity
        self._counts: NDArray[np.int64] = np.empty(0, np.int64)  # [vocabulary]
        self._distinct: NDArray[np.int64] = np.empty(0, np.int64)  # ids in order of first use
        self._distinct_length = 0
        self._counted = 0  # tokens that the counts already include

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def generated(self) -> int:
        """Number of tokens after the prompt."""
        return len(self.tokens) - self.prompt_length

    def append(self, token: int) -> None:
        """Adds one output token. Raises IndexError when the capacity is used up."""
        if len(self.tokens) == self._capacity:
            raise IndexError(f"the history holds {self._capacity} tokens")
        self.tokens.append(token)

    def cut(self, length: int) -> None:
        """Leaves the first ``length`` tokens, the prompt at least."""
        del self.tokens[length:]
        if self._counted > length:
            self._counts = np.empty(0, np.int64)  # counted anew when somebody asks

    def token_counts(self, vocabulary: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The distinct ids seen so far and how often each occurred, both [distinct].

        Raises IndexError if a token does not lie in the vocabulary.
        """
        if self._counts.size != vocabulary:
            self._counts = np.zeros(vocabulary, np.int64)
            self._distinct = np.empty(min(vocabulary, self._capacity), np.int64)
            self._distinct_length = self._counted = 0
        if self._counted < len(self.tokens):
            self._count_new_tokens()
        ids = self._distinct[: self._distinct_length]
        return ids, self._counts[ids]

    def _count_new_tokens(self) -> None:
        counts = self._counts
        for token in self.tokens[self._counted :]:
            if counts[token] == 0:
                self._distinct[self._distinct_length] = token
                self._distinct_length += 1
            counts[token] += 1
        self._counted = len(self.tokens)

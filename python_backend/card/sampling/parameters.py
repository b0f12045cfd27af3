"""The sampling parameters of a request, and the token history of a session."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """The sampling parameters of one session.

    Raises:
        ValueError: a field lies outside its range; the message names field, value and range.
    """

    temperature: float = 0.0
    """0 is greedy."""
    top_k: int = 0
    """Only the k likeliest ids may be chosen; 0 is off."""
    top_p: float = 0.0
    """Only the likeliest ids that together reach this probability; 0 and 1 are off."""
    min_p: float = 0.0
    """Only ids at least this fraction as likely as the likeliest may be chosen; 0 is off."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of ids seen before; 1 is off."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of ids seen before."""
    frequency_penalty: float = 0.0
    """Subtracted once for every time that an id was seen before."""
    min_tokens: int = 0
    """None of ``end_ids`` is chosen before this many new tokens."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that are never completed."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Ids and what is added to their logits."""
    seed: int = 0
    """Key of the noise, an unsigned 64-bit integer."""
    end_ids: tuple[int, ...] = ()
    """Ids that end the text; chat models often have several."""

    def __post_init__(self) -> None:
        _require(0.0 <= self.temperature < math.inf, "temperature", self.temperature, "0 or more")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (off) or more")
        _require(0.0 <= self.top_p <= 1.0, "top_p", self.top_p, "between 0 and 1")
        _require(0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "between 0 and 1")
        _require(
            0.0 < self.repetition_penalty < math.inf,
            "repetition_penalty",
            self.repetition_penalty,
            "above 0",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            penalty = getattr(self, name)
            _require(math.isfinite(penalty), name, penalty, "a finite number")
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "0 or more")
        for word in self.bad_words:
            _require(
                len(word) > 0 and min(word) >= 0,
                "bad_words",
                word,
                "a sequence of one or more token ids",
            )
        for token, bias in self.logit_bias:
            _require(
                token >= 0 and math.isfinite(bias),
                "logit_bias",
                (token, bias),
                "a token id and a finite number",
            )
        _require(0 <= self.seed < 1 << 64, "seed", self.seed, "an unsigned 64-bit integer")
        for end_id in self.end_ids:
            _require(end_id >= 0, "end_ids", end_id, "token ids")

    @property
    def is_greedy(self) -> bool:
        """Whether noise cannot change the choice: no temperature, or a single id to choose from."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def filters(self) -> bool:
        """Whether min-p, top-k or top-p may remove ids."""
        return self.min_p > 0.0 or self.top_k > 0 or 0.0 < self.top_p < 1.0

    @property
    def penalises(self) -> bool:
        """Whether any penalty is on."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


def _require(holds: bool, field: str, value: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{field} is {value!r}; it must be {allowed}")


class History:
    """Prompt and output tokens of one session.

    tokens         all tokens so far; only the methods change it. A list, because a pass reads a few
                   of them one by one
    prompt_length  number of these that belong to the prompt

    `token_counts` counts all tokens at its first call, and later only new ones.
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
            self._counts = np.empty(0, np.int64)  # `token_counts` counts again

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

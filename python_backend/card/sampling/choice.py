"""What a request asks of the choice of a token, and the one function that chooses.

Order of the changes of a row before the choice: logit bias; repetition, presence and frequency
penalties; bans (``min_tokens``, bad words); temperature; min-p, top-k, top-p; noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from card.sampling.filters import kept_ids
from card.sampling.noise import LARGEST_NOISE, least_bits, noise_of, position_key, uniform_bits


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
        lowest, finite = "0 or more", "a finite number"
        penalty = self.repetition_penalty
        checks: list[tuple[str, object, bool, str]] = [
            ("temperature", self.temperature, 0.0 <= self.temperature < math.inf, lowest),
            ("top_k", self.top_k, self.top_k >= 0, "0 (off) or more"),
            ("top_p", self.top_p, 0.0 <= self.top_p <= 1.0, "between 0 and 1"),
            ("min_p", self.min_p, 0.0 <= self.min_p <= 1.0, "between 0 and 1"),
            ("repetition_penalty", penalty, 0.0 < penalty < math.inf, "above 0"),
            *(
                (name, getattr(self, name), math.isfinite(getattr(self, name)), finite)
                for name in ("presence_penalty", "frequency_penalty")
            ),
            ("min_tokens", self.min_tokens, self.min_tokens >= 0, lowest),
            *(
                ("bad_words", word, bool(word) and min(word) >= 0, "one or more token ids")
                for word in self.bad_words
            ),
            *(
                ("logit_bias", pair, pair[0] >= 0 and math.isfinite(pair[1]), "an id and a number")
                for pair in self.logit_bias
            ),
            ("seed", self.seed, 0 <= self.seed < 1 << 64, "an unsigned 64-bit integer"),
            *(("end_ids", end_id, end_id >= 0, "token ids") for end_id in self.end_ids),
        ]
        for name, value, holds, allowed in checks:
            if not holds:
                raise ValueError(f"{name} is {value!r}; it must be {allowed}")

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


_LEAST: Final = float(np.finfo(np.float32).min)
_LOWEST_TEMPERATURE: Final = 1e-20  # below it a difference of logits could overflow
_NEAR: Final = 5.0  # nats below the best (after temperature) that are perturbed first
_FEW: Final = 384  # perturbing this many ids is faster than selecting among them


class InvalidLogitsError(ValueError):
    """A row's largest logit is NaN or infinite: the model's output is broken."""


def sample(
    logits: NDArray[np.float32],
    history: History,
    parameters: SamplingParameters,
    allowed: NDArray[np.bool_] | None = None,
) -> int:
    """The token that follows ``history``.

    Args:
        logits: [vocab], the row for the token at absolute position ``len(history)``; it is not
            changed. The choice depends only on this row and the other arguments.
        history: prompt and output so far.
        parameters: how to choose. The logit bias comes first, then penalties, bans, temperature,
            min-p, top-k, top-p. Ties go to the lowest id. If the bans (bad words and early
            ``end_ids``) would leave no id at all, they are ignored for this token.
        allowed: [vocab], the ids that may be chosen whatever else is asked for, at least one of
            them; None: all.

    Raises:
        InvalidLogitsError: the largest logit is NaN or infinite.
    """
    row = penalised(biased(logits, parameters), history, parameters)
    if allowed is not None:
        row = np.where(allowed, row, np.float32(-np.inf))
    banned = banned_ids(history, parameters)
    if banned:
        left = without(row, banned)
        if left.max() != -np.inf:
            row = left
    best = int(row.argmax())
    if not math.isfinite(row.item(best)):
        raise InvalidLogitsError(
            f"the largest logit at position {len(history)} is {row.item(best)} (token {best}); "
            "the model's output is broken: check its weights and dtype"
        )
    if parameters.is_greedy:
        return best
    temperature = max(parameters.temperature, _LOWEST_TEMPERATURE)
    key = position_key(parameters.seed, len(history))
    kept = kept_ids(row, temperature, parameters.min_p, parameters.top_k, parameters.top_p)
    if kept is None:
        return _perturbed_argmax(row, row.item(best), temperature, key)
    return _best_of(kept, row, row.item(best), temperature, key)[1]


def _perturbed_argmax(
    row: NDArray[np.float32], largest: float, temperature: float, key: NDArray[np.uint64]
) -> int:
    """The id with the largest perturbed logit, found without perturbing those that cannot win.

    The ids near the top are perturbed first. Any other needs more noise than separates it from
    the best of these, and the largest possible noise rules most out by their logit alone. For the
    rest the uniform's bits are drawn, and only the few that are high enough become noise.
    """
    if row.size <= _FEW:
        return _best_of(np.arange(row.size), row, largest, temperature, key)[1]
    cut = _float32(largest - _NEAR * temperature)
    near = (row >= cut).nonzero()[0]
    score, winner = _best_of(near, row, largest, temperature, key)
    # Thresholds err on the low side, which costs a few more ids and keeps the result exact.
    reach = (LARGEST_NOISE - score) * temperature
    floor = _float32(largest - reach - 1e-6 * (abs(largest) + abs(reach)))
    rest = (row >= floor).nonzero()[0]
    if rest.size <= near.size:
        return winner
    missing = score - (float(cut) - largest) / temperature
    rest = rest[uniform_bits(key, rest) >= least_bits(missing)]
    rest = rest[row[rest] < cut]
    if rest.size:
        other_score, other = _best_of(rest, row, largest, temperature, key)
        if (other_score, -other) > (score, -winner):
            return other
    return winner


def _float32(threshold: float) -> np.float32:
    """The threshold, or the least number there is if it lies below that."""
    return np.float32(max(threshold, _LEAST))


def _best_of(
    ids: NDArray[np.int64],
    row: NDArray[np.float32],
    largest: float,
    temperature: float,
    key: NDArray[np.uint64],
) -> tuple[float, int]:
    """Largest perturbed logit among ``ids`` [n], ascending, and the lowest id that has it."""
    scores = np.subtract(row[ids], largest, dtype=np.float64)
    scores /= temperature
    scores += noise_of(uniform_bits(key, ids))
    best = int(scores.argmax())
    return scores.item(best), ids.item(best)

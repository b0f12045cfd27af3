"""What a request may ask of the sampler."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How one session chooses its tokens.

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

"""What a request may ask of the sampler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How one session chooses its tokens; `card.serving.requests` refuses what makes no sense."""

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

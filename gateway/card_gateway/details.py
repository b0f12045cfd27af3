"""What a response of Triton tells in JSON: tokens with their log-probabilities, and speculation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One token of a prompt or a text.

    log_prob  natural, under the model's own logits; None of a prompt's first token
    top       the likeliest ids at its position with theirs, likeliest first
    """

    token: int
    log_prob: float | None
    top: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, told: dict[str, Any]) -> ScoredToken:
        return cls(told["id"], told["logprob"], tuple((token, lp) for token, lp in told["top"]))


def read_details(text: str | None) -> dict[str, Any]:
    """What the output `details` of one response tells, as fields of `Piece`."""
    told = json.loads(text or "{}")
    speculation = told.get("speculation", {})
    return {
        "prompt": tuple(map(ScoredToken.of, told.get("prompt", ()))),
        "tokens": tuple(map(ScoredToken.of, told.get("tokens", ()))),
        "drafts": speculation.get("drafts", 0),
        "accepted_at": tuple(speculation.get("accepted_at", ())),
        "cached_tokens": told.get("cached_tokens", 0),
        "trace": tuple(told.get("trace", ())),
    }

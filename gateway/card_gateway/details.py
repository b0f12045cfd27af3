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


@dataclass(frozen=True, slots=True)
class Details:
    """The output `details` of one response.

    drafts       target passes that verified candidates
    accepted_at  candidates accepted by their place behind the text
    cached_tokens  of the prompt, whose KV was kept
    trace        events of speculation, as Triton tells them
    """

    prompt: tuple[ScoredToken, ...] = ()
    tokens: tuple[ScoredToken, ...] = ()
    drafts: int = 0
    accepted_at: tuple[int, ...] = ()
    cached_tokens: int = 0
    trace: tuple[dict[str, Any], ...] = ()

    @classmethod
    def read(cls, text: str | None) -> Details:
        """Of a server that says nothing, none."""
        if not text:
            return cls()
        told = json.loads(text)
        speculation = told.get("speculation", {})
        return cls(
            tuple(map(ScoredToken.of, told.get("prompt", ()))),
            tuple(map(ScoredToken.of, told.get("tokens", ()))),
            speculation.get("drafts", 0),
            tuple(speculation.get("accepted_at", ())),
            told.get("cached_tokens", 0),
            tuple(told.get("trace", ())),
        )

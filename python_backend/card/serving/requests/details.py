"""What has no tensor of its own on the wire: the JSON of the output `details`.

    {"prompt": [token, ...],    with return_prompt_log_probs, in the first response with a token
     "tokens": [token, ...],    with return_log_probs, those of this response
     "output_ids": [id, ...],   with draft_key, those of this response
     "speculation": {...},      with return_perf_metrics, in the last response
     "cached_tokens": n,        with it: tokens of the prompt whose KV was kept
     "trace": [event, ...]}     with return_trace, what happened since the last response

A token is `{"id", "logprob", "top"}`: its log-probability (null for the prompt's first token, which
nothing precedes), and the likeliest ids at its position as `[id, logprob]`, likeliest first.
`speculation` is `{"drafts", "accepted_at"}`: target passes that verified candidates, and how many
candidates were accepted at each place behind the text that was committed before the pass.
docs/wire.md tells what events are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from card.cache import SlotCounters

IMPOSSIBLE = -9999.0
"""Stands for minus infinity, which JSON cannot say; OpenAI's number."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One token as it is reported.

    log_probability  natural, under the unprocessed logits; None if nothing precedes it
    likeliest        ids at its position with theirs
    """

    token: int
    log_probability: float | None
    likeliest: Sequence[tuple[int, float]] = ()

    def as_json(self) -> dict[str, Any]:
        known = self.log_probability
        return {
            "id": self.token,
            "logprob": None if known is None else finite(known),
            "top": [[token, finite(value)] for token, value in self.likeliest],
        }


def details_json(
    prompt: Sequence[ScoredToken] | None,
    tokens: Sequence[ScoredToken] | None,
    counters: SlotCounters | None,
    trace: Sequence[Mapping[str, Any]] = (),
    output_ids: Sequence[int] = (),
) -> str:
    """The text of `details`; empty if nothing of it was asked for."""
    found: dict[str, Any] = {}
    if prompt:
        found["prompt"] = [token.as_json() for token in prompt]
    if tokens:
        found["tokens"] = [token.as_json() for token in tokens]
    if output_ids:
        found["output_ids"] = list(output_ids)
    if counters is not None:
        accepted = np.trim_zeros(counters.accepted_at, "b").tolist()
        found["speculation"] = {"drafts": counters.drafts, "accepted_at": accepted}
        found["cached_tokens"] = counters.reused_tokens
    if trace:
        found["trace"] = trace
    return json.dumps(found, separators=(",", ":")) if found else ""


def finite(value: float) -> float:
    """As JSON can say it."""
    return max(value, IMPOSSIBLE)

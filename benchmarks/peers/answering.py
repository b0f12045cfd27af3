"""How a peer is spoken to: one JSON object per line, requests on standard input, answers on a
descriptor of their own, so that libraries may print what they like.

The worker says `{"ready": {...}}` once its models are loaded, then answers every request
`{"mode", "prompt", "max_tokens", "temperature", "seed", ...}` with
`{"tokens", "seconds", "first_token_s"}` or `{"error"}`, one at a time.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """`seconds` from the request's token ids to the last token's, `first_token_s` to the first."""

    tokens: list[int]
    seconds: float
    first_token_s: float


def serve(ready: dict[str, Any], answer: Callable[[dict[str, Any]], Answer], answers: int) -> None:
    """Answer line by line until standard input ends; `answers` is the descriptor."""

    def say(content: dict[str, Any]) -> None:
        os.write(answers, json.dumps(content).encode() + b"\n")

    say({"ready": ready})
    for line in sys.stdin:
        try:
            say(asdict(answer(json.loads(line))))
        except (RuntimeError, ValueError) as error:
            say({"error": f"{type(error).__name__}: {error}"})

"""The common part of the workers of all peers: options, and one JSON object a line.

The worker writes `{"ready": true}` once its models are loaded, then answers every request
`{"mode", "prompt", "max_tokens", "temperature", "seed", ...}` with
`{"tokens", "seconds", "first_token_s"}` or `{"error"}`. Requests come on standard input; answers go
to a descriptor of their own, so that libraries may print.
"""

from __future__ import annotations

import argparse
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


Answering = Callable[[dict[str, Any]], Answer]


def serve(load: Callable[[argparse.Namespace], Answering], **own: Any) -> None:
    """Load the models, then answer line by line until standard input ends.

    own  further options of the worker, with their defaults
    """
    parser = argparse.ArgumentParser()
    for name, default in own.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    for name in ("--target", "--draft", "--dtype"):
        parser.add_argument(name, required=True)
    for name in ("--context", "--threads", "--answers"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()

    def say(content: dict[str, Any]) -> None:
        os.write(options.answers, json.dumps(content).encode() + b"\n")

    answer = load(options)
    say({"ready": True})
    for line in sys.stdin:
        try:
            say(asdict(answer(json.loads(line))))
        except (RuntimeError, ValueError) as error:
            say({"error": f"{type(error).__name__}: {error}"})

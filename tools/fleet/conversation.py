"""A client that asks the router for the turns of conversations and times them."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from demonstration.gateway import MODEL

LIMIT_S = 120.0
ROUTED = "x-smg-routed-worker-id"
"""The header in which the router names the replica."""

Message = dict[str, str]


@dataclass
class Turn:
    """One answer; times are of the clock `time.monotonic`, in seconds.

    problem  why the answer is not whole; None: it is
    replica  its URL, as the router names it; empty: no replica took the request
    """

    asked_s: float
    text: str = ""
    first_s: float = 0.0
    ended_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    replica: str = ""
    problem: str | None = "the stream broke off"

    @property
    def first_token_s(self) -> float:
        return self.first_s - self.asked_s


def ask(
    url: str,
    messages: Sequence[Message],
    max_tokens: int,
    begun: Callable[[Turn], None] = lambda turn: None,
) -> Turn:
    """Stream the greedy answer to `messages`; `begun` is called at the first token."""
    turn = Turn(time.monotonic())
    body = {
        "model": MODEL,
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=LIMIT_S)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        turn.replica = answer.getheader(ROUTED) or ""
        if answer.status != http.client.OK:
            turn.problem = f"{answer.status}: {answer.read()[:200]!r}"
        else:
            _read(answer, turn, begun)
    except (OSError, http.client.HTTPException) as error:
        turn.problem = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    turn.ended_s = time.monotonic()
    return turn


def _read(answer: http.client.HTTPResponse, turn: Turn, begun: Callable[[Turn], None]) -> None:
    for line in answer:
        if not line.startswith(b"data: "):
            continue
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            turn.problem = None
            return
        event = json.loads(data)
        if "error" in event:
            turn.problem = str(event["error"])
            return
        for choice in event["choices"]:
            text = choice["delta"].get("content")
            if text and not turn.first_s:
                turn.first_s = time.monotonic()
                begun(turn)
            turn.text += text or ""
        if usage := event.get("usage"):
            turn.prompt_tokens = usage["prompt_tokens"]
            turn.completion_tokens = usage["completion_tokens"]
            turn.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]

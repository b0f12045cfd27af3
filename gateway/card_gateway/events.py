"""Server-sent events of one streamed answer."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from card_client import CardError
from card_gateway.answer import Answer
from card_gateway.errors import from_triton
from card_gateway.generation import Piece

DONE = b"data: [DONE]\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventStream(StreamingResponse):
    """Sends events made of `pieces`, and closes `pieces` however the response ends."""

    def __init__(self, events: AsyncIterator[bytes], pieces: AsyncGenerator[Piece, None]) -> None:
        self._pieces = pieces
        super().__init__(events, media_type="text/event-stream", headers=_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pieces):
            await super().__call__(scope, receive, send)


async def answer_events(
    answer: Answer,
    first: Piece,
    pieces: AsyncGenerator[Piece, None],
    *,
    include_usage: bool,
) -> AsyncIterator[bytes]:
    """An answer piece by piece, `[DONE]` at its end."""
    # With the usage behind them, all other events carry an empty one.
    extra: dict[str, Any] = {"usage": None} if include_usage else {}
    if opening := answer.opening():
        yield _event(opening | extra)
    last = first
    yield _event(answer.chunk(first) | extra)
    try:
        async for last in pieces:
            yield _event(answer.chunk(last) | extra)
    except CardError as error:
        # The status has long been sent; clients look for this in the stream.
        yield _event(from_triton(error).body())
    else:
        if include_usage:
            yield _event(answer.usage_chunk(last))
    yield DONE


def _event(content: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(content, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()

"""Server-sent events of one streamed answer."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from card_client import CardError
from card_gateway.answer import Answer
from card_gateway.errors import from_triton
from card_gateway.generation import Piece
from card_gateway.usage import Usage

DONE = b"data: [DONE]\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


@dataclass(frozen=True)
class UsageWanted:
    """When a stream tells its usage: in every event, and in one behind the last piece."""

    always: bool = False
    at_end: bool = False


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
    texts: int,
    usage: Usage,
    wanted: UsageWanted,
) -> AsyncIterator[bytes]:
    """An answer piece by piece, `[DONE]` at its end.

    texts  how many the answer has
    usage  has seen `first`
    """

    def extra() -> dict[str, Any]:
        if wanted.always:
            return {"usage": usage.as_json()}
        # With the usage behind them, all other events carry an empty one.
        return {"usage": None} if wanted.at_end else {}

    for opening in answer.openings(texts):
        yield _event(opening | extra())
    yield _event(answer.chunk(first) | extra())
    try:
        async for piece in pieces:
            yield _event(answer.chunk(piece) | extra())
    except CardError as error:
        # The status has long been sent; clients look for this in the stream.
        yield _event(from_triton(error).body())
    else:
        if wanted.at_end:
            yield _event(answer.usage_chunk(usage))
    yield DONE


def _event(content: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(content, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()

"""Server-sent events of one streamed answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from card_client import CardError
from card_gateway.answer import Answer
from card_gateway.errors import from_triton
from card_gateway.figures import Usage
from card_gateway.generation import Piece
from card_gateway.reading import Workers
from card_gateway.sampling import SamplingBody

_WRITER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
DONE = b"data: [DONE]\n\n"
_UNREAD_S = 10.0
"""Seconds that a client may take to read the end of a stream, after its deadline."""
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventStream(StreamingResponse):
    """Sends events made of `pieces`, and closes `pieces` however the response ends.

    A client that does not read keeps it open for a while after `deadline_s`, on the clock
    `time.monotonic`.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        pieces: AsyncGenerator[Piece, None],
        deadline_s: float,
    ) -> None:
        self._pieces = pieces
        self._deadline_s = deadline_s
        super().__init__(events, media_type="text/event-stream", headers=_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left_s = self._deadline_s - time.monotonic() + _UNREAD_S
        async with aclosing(self._pieces):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(super().__call__(scope, receive, send), left_s)


async def answer_events(
    answer: Answer,
    first: Piece,
    pieces: AsyncGenerator[Piece, None],
    *,
    texts: int,
    usage: Usage,
    body: SamplingBody,
    workers: Workers,
) -> AsyncIterator[bytes]:
    """An answer piece by piece, `[DONE]` at its end.

    texts  how many the answer has
    usage  has seen `first`
    """

    def extra() -> dict[str, Any]:
        if body.continuous_usage:
            return {"usage": usage.as_json()}
        # With the usage behind them, all other events carry an empty one.
        return {"usage": None} if body.include_usage else {}

    async def events(piece: Piece) -> bytes:
        def made() -> bytes:
            chunks = answer.chunks(piece)
            return b"".join(event_of(chunk | extra(), large=piece.is_large) for chunk in chunks)

        return await workers.run_if_large(piece.is_large, made)

    for opening in answer.openings(texts):
        yield event_of(opening | extra())
    yield await events(first)
    try:
        async for piece in pieces:
            yield await events(piece)
    except CardError as error:
        # The status is sent already; clients look for this in the stream.
        yield event_of(from_triton(error).body())
    else:
        if body.include_usage:
            yield event_of(answer.usage_chunk(usage))
    yield DONE


def event_of(content: dict[str, Any], kind: str = "", *, large: bool = False) -> bytes:
    """`kind` is the event's name, where a stream has several; a `large` one is made in steps."""
    if large:
        data = json_in_steps(content)
    else:
        data = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    name = f"event: {kind}\n" if kind else ""
    return f"{name}data: {data}\n\n".encode()


def json_in_steps(content: dict[str, Any]) -> str:
    """The JSON, made in steps between which other threads run."""
    return "".join(_WRITER.iterencode(content))

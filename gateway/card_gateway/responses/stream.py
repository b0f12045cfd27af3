"""Server-sent events of one answer."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from card_client import CardError
from card_gateway.errors import from_triton
from card_gateway.generation import Piece
from card_gateway.responses.memory import ItemMemory
from card_gateway.responses.output import ResponseAnswer


async def response_events(
    answer: ResponseAnswer,
    first: Piece,
    pieces: AsyncGenerator[Piece, None],
    memory: ItemMemory | None,
) -> AsyncIterator[bytes]:
    """The answer piece by piece; its items go to `memory` at the end."""
    for event in answer.opening():
        yield _event(event)
    for event in answer.events(first):
        yield _event(event)
    try:
        async for piece in pieces:
            for event in answer.events(piece):
                yield _event(event)
    except CardError as error:
        yield _event(answer.failed(from_triton(error)))
    else:
        if memory is not None:
            memory.keep(answer.output)


def _event(content: dict[str, Any]) -> bytes:
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return f"event: {content['type']}\ndata: {data}\n\n".encode()

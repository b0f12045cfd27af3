"""Server-sent events of one answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from card_client import CardError
from card_gateway.errors import from_triton
from card_gateway.events import event_of
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
    for event in (*answer.opening(), *answer.events(first)):
        yield event_of(event, event["type"])
    try:
        async for piece in pieces:
            for event in answer.events(piece):
                yield event_of(event, event["type"])
    except CardError as error:
        event = answer.failed(from_triton(error))
        yield event_of(event, event["type"])
    else:
        if memory is not None:
            memory.keep(answer.output)

"""Server-sent events of one answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from card_client import CardError
from card_gateway.errors import from_triton
from card_gateway.events import event_of
from card_gateway.generation import Piece
from card_gateway.reading import Workers
from card_gateway.responses.memory import ItemMemory
from card_gateway.responses.output import ResponseAnswer


async def response_events(
    answer: ResponseAnswer,
    first: Piece,
    pieces: AsyncGenerator[Piece, None],
    memory: ItemMemory | None,
    workers: Workers,
) -> AsyncIterator[bytes]:
    """The answer piece by piece; its items go to `memory` at the end."""

    async def events(piece: Piece) -> bytes:
        is_large = piece.is_large or (bool(piece.finish_reason) and answer.is_scored)

        def made() -> bytes:
            told = answer.events(piece)
            return b"".join(event_of(event, event["type"], large=is_large) for event in told)

        return await workers.run_if_large(is_large, made)

    for event in answer.opening():
        yield event_of(event, event["type"])
    yield await events(first)
    try:
        async for piece in pieces:
            yield await events(piece)
    except CardError as error:
        event = answer.failed(from_triton(error))
        yield event_of(event, event["type"])
    else:
        if memory is not None:
            memory.keep(answer.output)

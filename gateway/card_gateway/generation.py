"""The text of one request, cancelled on the server when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from card_client import CardClient, GenerateRequest

Result = TypeVar("Result")


@dataclass(frozen=True)
class Piece:
    """The next piece of a text; counts are totals so far.

    log_probs      one per token of this piece; empty unless asked for
    finish_reason  None until the last piece
    """

    text: str = ""
    log_probs: tuple[float, ...] = ()
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def says_something(self) -> bool:
        """Not so while the request waits for a slot, or its prompt is read: the server then sends
        signs of life."""
        return bool(self.text or self.completion_tokens or self.finish_reason)

    def __add__(self, later: Piece) -> Piece:
        return Piece(
            self.text + later.text,
            self.log_probs + later.log_probs,
            later.finish_reason,
            later.prompt_tokens,
            later.completion_tokens,
        )


async def generate(
    client: CardClient, request: GenerateRequest, *, timeout_s: float, request_id: str
) -> AsyncGenerator[Piece, None]:
    """Stream the text. Closing the generator cancels the request. Raises `CardError`."""
    tokens = 0
    stream = client.stream(request, timeout_s=timeout_s, request_id=request_id)
    async with aclosing(stream) as deltas:
        async for delta in deltas:
            before, tokens = tokens, delta.num_output_tokens or 0
            log_probs = (delta.output_log_probs or ()) if request.return_log_probs else ()
            yield Piece(
                delta.text,
                # A response without tokens still carries one number.
                log_probs[: tokens - before],
                delta.finish_reason or None,
                delta.num_input_tokens or 0,
                tokens,
            )


async def begin(pieces: AsyncGenerator[Piece, None]) -> Piece:
    """The first piece that says something. Raises `CardError`, also of one that waited in vain."""
    while not (piece := await anext(pieces)).says_something:
        pass
    return piece


async def gather(pieces: AsyncGenerator[Piece, None]) -> Piece:
    """The whole text as one piece.

    It is streamed from the server all the same: only between responses does a server notice that
    its client has left.
    """
    whole = Piece()
    async with aclosing(pieces):
        async for piece in pieces:
            whole += piece
    return whole


async def unless_client_leaves(request: Request, work: Awaitable[Result]) -> Result:
    """Do the work, or cancel it and raise `ClientDisconnect` when the client leaves first.

    The body of `request` must have been read.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.wait({working, leaving})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

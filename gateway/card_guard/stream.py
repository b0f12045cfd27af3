"""One stream of Triton, cancelled at a moment at which Triton frees all of its memory.

Triton 2.51 leaks 32 KiB for a stream that is cancelled while more requests may come. It leaks
17 KiB for one that is cancelled between its request and its first response, and sometimes for one
that is cancelled together with that response. Clients that come and go could fill the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine

import grpc
from grpc.aio import StreamStreamCall

LINGER_S = 3.0
"""Most seconds until the cancellation. `card` sends a stream's first response when its text begins,
or after a second in the queue. For a whole text the first response is the last; only then does
Triton see a cancellation."""
STREAM_ENDED = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""Errors of writing to a stream that Triton or the client has ended."""


class TritonStream:
    """Reads and writes in tasks of its own, because cancelling a client's task would make gRPC
    cancel the stream at once.

    call    the stream, still without a request
    answer  called with every message of Triton, until `is_left`
    linger_s           most seconds until the cancellation of a stream that was left
    behind_response_s  seconds from the first response to the cancellation; Triton frees the memory
                       just behind the response
    """

    def __init__(
        self,
        call: StreamStreamCall,
        answer: Callable[[bytes], Awaitable[None]],
        *,
        linger_s: float = LINGER_S,
        behind_response_s: float = 0.01,
    ) -> None:
        self._call = call
        self._linger_s = linger_s
        self._behind_response_s = behind_response_s
        self._answer = answer
        self._is_asked = False
        self._has_answered = asyncio.Event()
        self._writing: asyncio.Future[None] | None = None
        self._answering = asyncio.ensure_future(self._pass_answers_on())
        self.is_left = False

    async def ask(self, message: bytes) -> None:
        self._is_asked = True
        self._has_answered.clear()
        await self._unharmed(self._call.write(message))

    async def ask_no_more(self) -> None:
        await self._unharmed(self._call.done_writing())

    async def ends(self) -> None:
        """Returns when Triton has ended the stream. Raises `grpc.aio.AioRpcError` if it failed."""
        await asyncio.shield(self._answering)

    def leave(self, *, lingers: bool) -> Coroutine[None, None, None]:
        """Drop all further answers. The returned coroutine cancels a stream that has not ended: at
        once, or if it `lingers` as soon as that costs no memory in Triton."""
        self.is_left = True
        return self._end(lingers=lingers)

    async def _unharmed(self, writing: Awaitable[None]) -> None:
        self._writing = asyncio.ensure_future(writing)
        await asyncio.shield(self._writing)

    async def _end(self, *, lingers: bool) -> None:
        try:
            if lingers and not self._call.done():
                with contextlib.suppress(asyncio.TimeoutError, *STREAM_ENDED):
                    await asyncio.wait_for(self._may_be_cancelled(), self._linger_s)
        finally:
            self._call.cancel()
            for task in filter(None, (self._writing, self._answering)):
                task.cancel()  # its error does not matter
                await asyncio.wait({task})

    async def _may_be_cancelled(self) -> None:
        if self._writing is not None:
            await asyncio.wait({self._writing})
        await self._call.done_writing()
        if self._is_asked:
            await self._has_answered.wait()
            await asyncio.sleep(self._behind_response_s)
        else:  # Triton itself ends a stream without requests
            await self._call.code()

    async def _pass_answers_on(self) -> None:
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self._has_answered.set()
                await self._answer(message)
        finally:
            self._has_answered.set()

"""uvicorn's HTTP with bounds on what a connection may leave undone."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""Within which a client must send the head of a request that it has begun, or of its first."""
READ_BYTES = 4096
"""Read at once: a body in chunks of one byte costs the event loop 20 microseconds for each."""
HEAD_BYTES = 32 << 10


class Http(H11Protocol):
    """Makes room for a new connection where `limit_concurrency` are open: the connection that has
    waited longest for a request is closed, one without any request before the others.

    uvicorn itself would answer 503 to every client. `layers.LimitRequests` bounds the requests that
    are open at a time.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._most = self.limit_concurrency
        self.limit_concurrency = None
        self._heard_s = self.loop.time()
        self._head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self._most is not None and len(self.connections) >= self._most:
            self._make_room()
        super().connection_made(transport)
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        self._heard_s = self.loop.time()
        super().data_received(data)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._expect_nothing()

    def send_400_response(self, msg: str) -> None:
        """Where a body turns out not to be HTTP, uvicorn answers 400 by itself. The route of the
        request must then answer nothing, or it leaves a traceback in the log."""
        super().send_400_response(msg)
        if self.cycle is not None:
            self.cycle.disconnected = True

    @property
    def _rank(self) -> tuple[bool, float]:
        """The connection with the lowest is closed first."""
        return self.cycle is not None, self._heard_s

    @property
    def _owes_a_request(self) -> bool:
        """Neither answered now nor waiting for an answer to a whole request."""
        cycle = self.cycle
        return (
            cycle is None or cycle.response_complete or cycle.more_body
            or self.transport.is_closing()
        )  # fmt: skip

    def _make_room(self) -> None:
        idle = [one for one in self.connections if isinstance(one, Http) and one._owes_a_request]
        if idle:
            min(idle, key=lambda one: one._rank).transport.abort()

    def _expect_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._expect_nothing()
        elif self._head is None:
            self._head = self.loop.call_later(HEAD_S, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

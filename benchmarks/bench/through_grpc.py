"""A real server, started through the supervisor, and the client that speaks to it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from bench.activity import DraftActivity
from bench.measurement import Measurement, Task
from bench.streamed import request_of, streamed
from card.cache import Pool, SlotCounters
from card.serving.geometry import pool_geometry
from card.settings import Settings
from card_client import CardClient
from loading.service import running_service
from loading.supervised import SupervisorEndedError, last_words


class ServerError(RuntimeError):
    """The server did not start or has ended; the message holds what it said last."""


class ThroughGrpc:
    """Sends one request at a time and looks into the server's pool for what it counted."""

    def __init__(
        self, address: str, client: CardClient, loop: asyncio.AbstractEventLoop, pool: Pool
    ) -> None:
        self.address = address
        self._client = client
        self._loop = loop
        self._pool = pool

    def complete(self, task: Task, decoding: str) -> Measurement:
        """Stream one text. Raises `CardError`."""
        before = DraftActivity.told_by(self._pool)
        deltas = self._client.stream(request_of(task, decoding))
        seen = self._loop.run_until_complete(streamed(deltas))
        activity = DraftActivity.told_by(self._pool).since(before)
        return seen.measured(self.last_counters(), activity)

    @property
    def target_passes(self) -> int:
        """Since the server began."""
        return self._pool.target_passes

    def last_counters(self) -> SlotCounters:
        """Of the session that was opened last: nobody else speaks to this server."""
        return self._pool.card_slot(int(np.argmax(self._pool.session_ids))).counters()


@contextmanager
def through_grpc(settings: Settings, settings_file: Path | None) -> Iterator[ThroughGrpc]:
    """A server on free ports, with the rows per pass that `settings` say.

    Raises `ServerError`.
    """
    variables = {"CARD_SPECULATION__ROWS": str(settings.speculation.rows)}
    with ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory()), "service.log")
        try:
            service = stack.enter_context(running_service(settings, settings_file, log, variables))
        except SupervisorEndedError as error:
            with log.open("rb") as said:
                raise ServerError(f"{error}\n{last_words(said)}") from error
        server_pid = service.processes()["tritonserver"]
        pool = Pool.open(settings.cache.directory, server_pid, pool_geometry(settings))
        if pool is None:
            raise ServerError(f"the server has no cache pool under {settings.cache.directory}")
        stack.callback(pool.close)
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        client = CardClient(service.grpc)
        stack.callback(lambda: loop.run_until_complete(client.close()))
        yield ThroughGrpc(service.grpc, client, loop, pool)

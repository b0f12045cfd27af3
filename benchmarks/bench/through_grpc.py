"""A real server, started through the supervisor, and the client that speaks to it."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from bench.activity import DraftActivity
from bench.measurement import Measurement, Task
from bench.streamed import request_of, streamed
from card.cache import Pool, SlotCounters
from card.serving.geometry import pool_geometry
from card.serving.supervision.local_http import open_local
from card.serving.supervision.supervised import (
    SupervisedServer,
    SupervisorEndedError,
    last_words,
    reserved_serving,
)
from card.settings import Settings
from card_client import CardClient

_LOOK_S = 0.1
_ANSWER_S = 5.0


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
        ports = stack.enter_context(reserved_serving(settings.serving.address))
        serving = settings.serving.model_copy(update=ports)
        log = stack.enter_context(tempfile.TemporaryFile())
        server = SupervisedServer(
            serving, settings_file=settings_file, variables=variables, output=log
        )
        stack.callback(_stop, server)
        server_pid = _wait_until_settled(server, serving.health_port, log)
        pool = Pool.open(settings.cache.directory, server_pid, pool_geometry(settings))
        if pool is None:
            raise ServerError(f"the server has no cache pool under {settings.cache.directory}")
        stack.callback(pool.close)
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        address = f"{server.host}:{serving.grpc_port}"
        client = CardClient(address)
        stack.callback(lambda: loop.run_until_complete(client.close()))
        yield ThroughGrpc(address, client, loop, pool)


def _wait_until_settled(server: SupervisedServer, health_port: int, log: IO[bytes]) -> int:
    """Returns the process id of Triton's server."""
    try:
        while not server.is_settled():
            time.sleep(_LOOK_S)
    except SupervisorEndedError as error:
        raise ServerError(f"{error}\n{last_words(log)}") from error
    url = f"http://{server.host}:{health_port}/ready"
    with open_local(url, _ANSWER_S) as answer:
        return int(json.load(answer)["server_pid"])


def _stop(server: SupervisedServer) -> None:
    server.stop()
    server.wait()

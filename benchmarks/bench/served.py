"""A real server, started through the supervisor, and the client that speaks to it."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.measurement import Measurement, Task, draft_counts, slot_counts
from card.cache import Pool
from card.serving.geometry import pool_geometry
from card.settings import Settings
from card_client import CardClient, Delta, GenerateRequest
from loading.service import running_service
from loading.supervised import SupervisorEndedError, last_words


class ServerError(RuntimeError):
    """The server did not start or has ended; the message holds what it said last."""


def request_of(task: Task, decoding: str) -> GenerateRequest:
    """No kept prefix is read, and no token ends the text."""
    return GenerateRequest(
        task.prompt.text,
        task.max_tokens,
        temperature=task.temperature,
        seed=task.seed,
        end_id=-1,
        decoding=decoding,
        skip_reading_prefix_cache=True,
        return_num_output_tokens=True,
    )


async def streamed(deltas: AsyncGenerator[Delta, None]) -> Measurement:
    """The measurement of a client's stream, which sends its request with the first `anext`."""
    pieces: list[str] = []
    generated, first_token_s, seconds = 0, 0.0, 0.0
    started = time.perf_counter()
    async with aclosing(deltas):
        async for delta in deltas:
            seconds = time.perf_counter() - started
            first_token_s = first_token_s or seconds
            pieces.append(delta.text)
            generated = delta.num_output_tokens or 0
    return Measurement("".join(pieces), None, generated, seconds, first_token_s)


class Server:
    """Gets one request at a time; its pool holds what it counted."""

    def __init__(
        self, address: str, client: CardClient, loop: asyncio.AbstractEventLoop, pool: Pool
    ) -> None:
        self.address = address
        self._client = client
        self.loop = loop
        self._pool = pool

    def complete(self, task: Task, decoding: str) -> Measurement:
        """Stream one text. Raises `CardError`."""
        before = draft_counts(self._pool)
        deltas = self._client.stream(request_of(task, decoding))
        seen = self.loop.run_until_complete(streamed(deltas))
        counts = self.last_counts()
        counts.update(draft_counts(self._pool, before))
        return replace(seen, counts=counts)

    def last_counts(self) -> Counter[str]:
        """Of the session that was opened last; the benchmark is this server's only client."""
        return slot_counts(self._pool.card_slot(int(np.argmax(self._pool.session_ids))).counters())


@contextmanager
def serving(settings: Settings, settings_file: Path | None) -> Iterator[Server]:
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
        yield Server(service.grpc, client, loop, pool)

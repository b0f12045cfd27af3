"""A real server, started through the supervisor, and those who ask it: a client, a drafting device.

SLED's device does what `card-client edge` does, and keeps its model from text to text. Every byte
between the device and the server takes `DEVICE_DELAY_S` more, each way.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import (
    AsyncExitStack,
    ExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.engines import let_torch_use
from bench.measurement import Measurement, Task, draft_counts, slot_counts
from bench.runner import ContenderError
from card.cache import Pool
from card.cores import usable_cores
from card.serving.geometry import pool_geometry
from card.settings import Settings
from card_client import CardClient, CardError, Delta, GenerateRequest
from card_client.edge import TransformersModel, stream
from loading.service import running_service
from loading.supervised import ProcessEndedError, last_words

DEVICE_DELAY_S = 0.02
_CHUNK = 1 << 16


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
        """The counts of the latest session. The benchmark is this server's only client."""
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
        except ProcessEndedError as error:
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


Device = Callable[[Task, str, int], Measurement]
"""Writes one text by a pacing and so many draft tokens. Raises `ContenderError` if the server is
gone."""


@contextmanager
def device(draft: Path, server: Server) -> Iterator[Device]:
    """A device with this model, which keeps its connection. Raises `ServerError` if the model
    cannot be loaded."""
    from transformers.utils.logging import disable_progress_bar  # seconds to import

    disable_progress_bar()
    try:
        model = TransformersModel.load(draft)
    except CardError as error:
        raise ServerError(str(error)) from error
    run, stack = server.loop.run_until_complete, AsyncExitStack()

    def complete(task: Task, decoding: str, gamma: int) -> Measurement:
        let_torch_use(usable_cores())
        deltas = stream(client, request_of(task, decoding), model, ahead=gamma, whole=True)
        try:
            return replace(run(streamed(deltas)), counts=server.last_counts())
        except CardError as error:
            raise ContenderError(f"the device: {error}") from error

    try:
        proxy = run(stack.enter_async_context(delaying_proxy(server.address, DEVICE_DELAY_S)))
        client = run(stack.enter_async_context(CardClient(proxy)))
        yield complete
    finally:
        run(stack.aclose())


@asynccontextmanager
async def delaying_proxy(address: str, delay_s: float) -> AsyncIterator[str]:
    """A TCP proxy that delays every byte, each way, as a network does. Yields its address in front
    of `address`, both as host:port."""
    host, _, port = address.rpartition(":")
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(_carry(source, sink, delay_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
) -> None:
    """Each chunk `delay_s` after it came; the delay is the same for all, so they stay in order."""
    loop = asyncio.get_running_loop()
    try:
        with suppress(ConnectionError):
            while chunk := await reader.read(_CHUNK):
                loop.call_later(delay_s, writer.write, chunk)
            await asyncio.sleep(delay_s)
    finally:
        loop.call_later(0.0, writer.close)

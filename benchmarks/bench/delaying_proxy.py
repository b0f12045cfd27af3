"""A TCP proxy that delays every byte, each way, as a network does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

_CHUNK = 1 << 16


@contextlib.asynccontextmanager
async def delaying_proxy(address: str, delay_s: float) -> AsyncIterator[str]:
    """Yields the proxy's address in front of `address`, both as host:port."""
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
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(_CHUNK):
                loop.call_later(delay_s, writer.write, chunk)
            await asyncio.sleep(delay_s)
    finally:
        loop.call_later(0.0, writer.close)

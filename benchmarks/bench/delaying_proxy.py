"""A network in between: a TCP proxy through which every byte takes a while longer, each way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

_CHUNK = 1 << 16


@contextlib.asynccontextmanager
async def delaying_proxy(address: str, delay_s: float) -> AsyncIterator[str]:
    """The address to reach `address` through, host:port both."""
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
    """Byte for byte and in order, each chunk `delay_s` after it came."""
    loop = asyncio.get_running_loop()
    on_their_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def arrive() -> None:
        while True:
            due_s, chunk = await on_their_way.get()
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            if not chunk:
                return
            writer.write(chunk)
            await writer.drain()

    arriving = asyncio.create_task(arrive())
    try:
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(_CHUNK):
                on_their_way.put_nowait((loop.time() + delay_s, chunk))
            on_their_way.put_nowait((loop.time() + delay_s, b""))
            await arriving
    finally:
        arriving.cancel()
        writer.close()

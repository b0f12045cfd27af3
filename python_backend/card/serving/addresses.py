"""`serving.address` as each program spells it, and the way from one family of addresses to the
other: Triton's HTTP server listens on IPv4 or on IPv6, never on both.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from functools import partial

BOTH = "::"
"""All IPv4 and all IPv6 addresses."""
_LOOPBACK = "127.0.0.1"
_MOST_CONNECTIONS = 1024
_PIECE_BYTES = 1 << 16


def reachable(address: str) -> str:
    """Where a program on this machine reaches what listens on `address`."""
    return _LOOPBACK if address in ("0.0.0.0", BOTH) else address


def bracketed(address: str) -> str:
    """As URLs and gRPC write an address in front of a port."""
    return f"[{address}]" if ":" in address else address


def for_triton_http(address: str) -> str:
    """As Triton's HTTP server takes an address; IPv4 alone where both families are wanted."""
    if address == BOTH:
        return "0.0.0.0"
    return f"ipv6:{address}" if ":" in address else address


class Relay:
    """Passes connections to a port of all IPv6 addresses on to the same port of 127.0.0.1."""

    def __init__(self, ports: Iterable[int]) -> None:
        """Listen, and serve from a thread. Raises `OSError` where a port is taken."""
        with ExitStack() as opened:
            self._listeners = {
                port: opened.enter_context(
                    socket.create_server((BOTH, port), family=socket.AF_INET6)
                )
                for port in ports
            }
            opened.pop_all()
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="relay", daemon=True
        )
        self._thread.start()
        self._started.wait()

    def close(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        open_connections = asyncio.Semaphore(_MOST_CONNECTIONS)

        async def relay(
            port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            async with open_connections:
                await _pass_on(reader, writer, port)

        servers = [
            await asyncio.start_server(partial(relay, port), sock=listener)
            for port, listener in self._listeners.items()
        ]
        self._started.set()
        await self._stopping.wait()
        for server in servers:  # connections that are open end with the loop
            server.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Until either side closes."""
    try:
        far_reader, far_writer = await asyncio.open_connection(_LOOPBACK, port)
    except OSError:  # the server is away
        writer.close()
        return
    pumps = [
        asyncio.ensure_future(_pump(reader, far_writer)),
        asyncio.ensure_future(_pump(far_reader, writer)),
    ]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        writer.close()
        far_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()

"""Runs the proxy on a port: starts it, writes heartbeats, and drains it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc

from card_client import Tls
from card_client.channel import channel_options
from card_guard.admission import Admission
from card_guard.proxy import Proxy

_AT_THE_DOOR = 256
"""Most calls beyond those with a place, which are being refused or ended."""

BEAT = b"."
BEAT_S = 0.25
"""Seconds between two heartbeats."""


class StartError(RuntimeError):
    """The guard cannot start; the message says what to change."""


@dataclass(frozen=True)
class Guard:
    """The guard's settings; `card-guard --help` explains the others.

    calls          most calls at a time, not counting the same number of calls just left by clients
    greeting_s     seconds within which a client must complete the TLS and HTTP/2 handshakes; then
                   the guard closes its connection, to free the descriptor
    without_call_s seconds until a connection without a call is closed, because its client may have
                   vanished. A short time makes gRPC for Python log a line at the client
    beats          file descriptor to write `BEAT` to while calls are taken; None: to none
    """

    listen: str
    triton: str = "localhost:8001"
    models: tuple[str, ...] = ("ensemble", "ensemble_unary", "tensorrt_llm", "llmapi", "remote")
    message_bytes: int = 4 << 20
    calls: int = 1024
    idle_s: float = 2.0
    greeting_s: int = 10
    without_call_s: int = 3600
    connection_s: int | None = None
    beats: int | None = None
    tls: Tls | None = None


async def serve(guard: Guard, stop: asyncio.Event, drain_s: float) -> None:
    """Forward requests until `stop`; open calls may take `drain_s` after it.

    Raises:
        StartError: the address cannot be listened on, or a certificate cannot be used.
    """
    credentials = None if guard.tls is None else _server_credentials(guard.tls)
    to_triton = grpc.aio.insecure_channel(guard.triton, channel_options(guard.triton))
    async with to_triton as channel:
        server = grpc.aio.server(
            handlers=[
                Proxy(
                    channel,
                    guard.models,
                    Admission(guard.calls, guard.idle_s),
                    most_leaving=guard.calls,
                )
            ],
            options=_for_clients(guard),
            maximum_concurrent_rpcs=guard.calls + _AT_THE_DOOR,
        )
        try:
            if credentials is None:
                server.add_insecure_port(guard.listen)
            else:
                server.add_secure_port(guard.listen, credentials)
        except RuntimeError:
            raise StartError(
                f"cannot listen on {guard.listen}: the port is taken, the address is none of this "
                "machine's, or the certificate and its key cannot be used"
            ) from None
        await server.start()
        async with _heard(guard.beats):
            await stop.wait()
        await server.stop(drain_s)


@contextlib.asynccontextmanager
async def _heard(descriptor: int | None) -> AsyncIterator[None]:
    """Write heartbeats for the supervisor from the loop that forwards messages, so that they stop
    when the loop hangs."""

    async def beat(watched: int) -> None:
        os.set_blocking(watched, False)
        with contextlib.suppress(BrokenPipeError):  # the supervisor is gone
            while True:
                with contextlib.suppress(BlockingIOError):  # the pipe is full
                    os.write(watched, BEAT)
                await asyncio.sleep(BEAT_S)

    beating = None if descriptor is None else asyncio.create_task(beat(descriptor))
    try:
        yield
    finally:
        if beating is not None:
            beating.cancel()


def _for_clients(guard: Guard) -> list[tuple[str, int]]:
    """Options of the port."""
    options = [
        ("grpc.max_receive_message_length", guard.message_bytes),
        ("grpc.so_reuseport", 0),  # else two could listen on one port, and share its clients
        ("grpc.server_handshake_timeout_ms", 1000 * guard.greeting_s),
        ("grpc.max_connection_idle_ms", 1000 * guard.without_call_s),
    ]
    if guard.connection_s is not None:
        options.append(("grpc.max_connection_age_ms", 1000 * guard.connection_s))
    return options


def _server_credentials(tls: Tls) -> grpc.ServerCredentials:
    ca, cert, key = (None if p is None else p.read_bytes() for p in (tls.ca, tls.cert, tls.key))
    if cert is None or key is None:
        raise StartError("clients' certificates cannot be asked for without one of our own")
    return grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=ca is not None)

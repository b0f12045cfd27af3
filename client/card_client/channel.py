"""A gRPC connection, and one request on a stream of its own.

A stream is left so that Triton lets go of all that it holds: of a stream that is cancelled between
its request and its first response Triton 2.51 keeps 17 KiB for good, and 8 KiB of one that is
cancelled just behind an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any, Protocol

import grpc
from tritonclient.grpc import MAX_GRPC_MESSAGE_SIZE, InferResult
from tritonclient.utils import InferenceServerException

from card_client.errors import is_here, server_error

_ALWAYS = [
    ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_SIZE),
    ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_SIZE),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
"""The first two are tritonclient's own, which these replace; without the others gRPC would leave a
server that was away for a minute alone for another half."""

_BALANCED = [("grpc.lb_policy_name", "round_robin")]

_PAST_PROXIES = [("grpc.enable_http_proxy", 0)]
"""No proxy can reach this machine for us, whatever `https_proxy` says."""


def channel_options(address: str, *, balanced: bool = False) -> list[tuple[str, str | int]]:
    """gRPC's options for a server at `HOST:PORT` or a target of gRPC's own form.

    balanced  requests take turns among the servers that the name stands for
    """
    options: list[tuple[str, str | int]] = [*_ALWAYS]
    if balanced:
        options += _BALANCED
    if is_here(address):
        options += _PAST_PROXIES
    return options


FIRST_S = 3.0
"""For a first response; who waits in the queue gets a sign of life each second."""
_BEHIND_FIRST_S = 0.01
_END_S = 1.0

Answer = tuple[InferResult, InferenceServerException | None]


class Call(Protocol):
    """What `tritonclient.grpc.aio.InferenceServerClient.stream_infer` returns."""

    async def __anext__(self) -> Answer: ...

    def cancel(self) -> Any: ...


async def only(message: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """A request stream of one; its end tells the server that nothing more will come."""
    yield message


async def responses_of(call: Call, first_s: float) -> AsyncGenerator[InferResult, None]:
    """Yields the responses to the only request of `call`, which is cancelled if they are not read
    to their end: at once, or with the first response if that has not come, or without it after
    `first_s`.

    Raises:
        CardError: an error that the server wrote.
        grpc.RpcError: the call was ended otherwise.
    """
    # Were it read here, a caller who is cancelled meanwhile would have gRPC cancel the call.
    first = asyncio.ensure_future(anext(call, None))
    try:
        answer = await asyncio.shield(first)
        while answer is not None:
            result, error = answer
            if error is not None:
                with suppress(grpc.RpcError, asyncio.TimeoutError):
                    await asyncio.wait_for(anext(call, None), _END_S)
                raise server_error(error.message())
            yield result
            answer = await anext(call, None)
    finally:
        _leave(call, first, first_s)


def _leave(call: Call, first: asyncio.Future[Answer | None], first_s: float) -> None:
    loop = asyncio.get_running_loop()

    def cancel_soon(first: asyncio.Future[Answer | None]) -> None:
        if not first.cancelled():
            first.exception()  # retrieved, so that asyncio does not log it
        loop.call_later(_BEHIND_FIRST_S, call.cancel)

    first.add_done_callback(cancel_soon)
    if not first.done():
        loop.call_later(first_s, call.cancel)

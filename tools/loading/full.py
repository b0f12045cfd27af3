"""How soon a full service refuses: every slot and place in the queue taken, and one client more.

The clients that keep it full are a process of their own, or the one that is measured would wait
until their texts are read.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from contextlib import suppress

from tritonclient.grpc.aio import InferenceServerClient

from card_client import CardClient, CardError, GenerateRequest
from card_client.channel import channel_options
from loading.service import Service

REFUSALS = 150
WANTED_MS = 10.0
_MORE = 4
"""Clients more than have room, so that one that ends is followed at once."""
_FULL_S, _ANSWER_S, _PAUSE_S = 120.0, 120.0, 0.05
_QUEUED_S = 1.0
"""A client that has heard nothing by then has found a place that another has just left."""


def refusal_times(service: Service) -> str:
    """Fill the service and say how long one client more waits to be refused, and beside that how
    long the server takes to say that it is live, in which no model has a part.

    Raises `CardError` for another answer than that the service is full.
    """
    settings = service.settings
    room = settings.cache.slots + settings.limits.queued_requests
    context = multiprocessing.get_context("spawn")
    crowd = context.Process(target=_fill, args=(service.grpc, room + _MORE), daemon=True)
    crowd.start()
    try:
        refused, live = asyncio.run(_measure(service.grpc))
    finally:
        crowd.kill()
        crowd.join()
    return (
        f"{len(refused)} refusals while {room} requests had all slots and the queue: "
        f"{_described(refused)}\nbeside them, whether the server is live: {_described(live)}"
    )


async def _measure(address: str) -> tuple[list[float], list[float]]:
    """Milliseconds of each refusal and of each question beside it."""
    refused: list[float] = []
    live: list[float] = []
    limit_s = time.monotonic() + _FULL_S
    server = InferenceServerClient(address, channel_args=channel_options(address))
    async with CardClient(address) as client, server:
        while len(refused) < REFUSALS:
            if time.monotonic() > limit_s:
                raise CardError("INTERNAL", f"only {len(refused)} requests found it full")
            await asyncio.sleep(_PAUSE_S)
            began = time.perf_counter()
            await server.is_server_live(client_timeout=_ANSWER_S)
            live_ms = (time.perf_counter() - began) * 1e3
            await asyncio.sleep(_PAUSE_S)  # so that neither wakes a thread for the other
            began = time.perf_counter()
            try:
                await client.generate(GenerateRequest("def", max_tokens=1), timeout_s=_QUEUED_S)
            except CardError as error:
                if error.code == "UNAVAILABLE":
                    refused.append((time.perf_counter() - began) * 1e3)
                    live.append(live_ms)
                elif error.code != "DEADLINE_EXCEEDED":
                    raise
    return refused, live


def _described(taken_ms: list[float]) -> str:
    within = sum(ms <= WANTED_MS for ms in taken_ms) / len(taken_ms)
    return (
        f"median {statistics.median(taken_ms):.1f} ms, {within:.0%} within {WANTED_MS:g} ms, "
        f"slowest {max(taken_ms):.0f} ms"
    )


def _fill(address: str, clients: int) -> None:
    """Ask for long texts again and again."""
    request = GenerateRequest("def fibonacci(n):", max_tokens=512, end_id=-1)

    async def ask(client: CardClient) -> None:
        while True:
            with suppress(CardError):
                await client.generate(request, timeout_s=_ANSWER_S)
            await asyncio.sleep(_PAUSE_S)

    async def ask_all() -> None:
        async with CardClient(address) as client:
            await asyncio.gather(*(ask(client) for _ in range(clients)))

    asyncio.run(ask_all())

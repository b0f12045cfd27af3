"""Places for calls: an idle one makes room, one that is owed an answer never does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from client_double import TritonDouble, served
from told_clock import ToldClock

from card_client import CardClient, GenerateRequest
from card_guard.admission import Admission, FullError, LostError, Place
from card_guard.server import Guard, serve
from loading.supervised import reserved_ports

IDLE_S = 10.0
LIMIT_S = 20.0


@pytest.fixture
def admission(clock: ToldClock) -> Admission:
    return Admission(2, IDLE_S, clock)


async def is_lost(place: Place) -> bool:
    try:
        await place.hold(asyncio.sleep(0))
    except LostError:
        return True
    return False


async def test_who_is_owed_an_answer_keeps_the_place(
    admission: Admission, clock: ToldClock
) -> None:
    with admission.place() as one, admission.place() as other:
        one.asked()
        other.asked()
        clock.now_s += 1000 * IDLE_S
        with pytest.raises(FullError), admission.place():
            pass
        one.answered()
        clock.now_s += IDLE_S
        with admission.place():
            assert not await is_lost(other)


@asynccontextmanager
async def guarded(**options: Any) -> AsyncIterator[tuple[TritonDouble, str, grpc.aio.Channel]]:
    """A guard with these options: the stand-in that it asks, its address and a channel to it."""
    with reserved_ports(1) as (port,), served() as triton:
        address, stop = f"127.0.0.1:{port}", asyncio.Event()
        guard = Guard(listen=address, triton=triton.address, **options)
        serving = asyncio.create_task(serve(guard, stop, 0))
        async with grpc.aio.insecure_channel(address) as channel:
            await asyncio.wait_for(channel.channel_ready(), LIMIT_S)
            yield triton, address, channel
        stop.set()
        await serving


@pytest.mark.parametrize("call", ["ModelStreamInfer", "ServerLive"])
async def test_calls_when_they_are_silent_give_their_places_away(call: str) -> None:
    """Nor do those whose one message never comes."""
    async with guarded(calls=3, idle_s=0.0) as (_, address, channel):
        open_call = channel.stream_stream(f"/inference.GRPCInferenceService/{call}")
        idle = [open_call() for _ in range(3)]
        for one in idle:
            await one.wait_for_connection()
        async with CardClient(address) as client:
            answers = [
                await client.generate(GenerateRequest("x"), timeout_s=LIMIT_S) for _ in range(4)
            ]
        assert len(answers) == 4
        for one in idle:
            one.cancel()


async def test_connections_that_say_nothing_are_closed() -> None:
    """Whether they never greet, or have no call for long."""
    async with guarded(greeting_s=1, without_call_s=1) as (_, address, channel):
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await asyncio.wait_for(reader.read(), LIMIT_S)  # returns at its end
        writer.close()
        closed = channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        await asyncio.wait_for(closed, LIMIT_S)  # returns at once if it is already
        async with CardClient(address) as client:
            assert await client.generate(GenerateRequest("x"), timeout_s=LIMIT_S)

"""When the guard cancels a stream of Triton's whose client has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc.aio import ServicerContext, StreamStreamCall

from card_guard import stream as streams
from card_guard.stream import TritonStream

WAIT_S = 30.0


class Triton:
    """Takes requests, answers once it may, and then goes on until it is cancelled."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.may_answer = asyncio.Event()
        self.is_asked = asyncio.Event()
        self.is_left = asyncio.Event()

    async def converse(self, requests: AsyncIterator[bytes], context: ServicerContext) -> None:
        try:
            async for _ in requests:
                self.seen.append("asked")
                self.is_asked.set()
                await self.may_answer.wait()
                self.seen.append("answers")
                await context.write(b"an answer")
            self.seen.append("will hear no more")
            if self.is_asked.is_set():
                await asyncio.Event().wait()
        finally:
            self.seen.append("left")
            self.is_left.set()


@asynccontextmanager
async def channel_to(triton: Triton) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    handlers = {
        "Converse": grpc.stream_stream_rpc_method_handler(triton.converse),
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Triton", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


async def echo(message: bytes, _: ServicerContext) -> bytes:
    return message


def stream_of(channel: grpc.aio.Channel) -> StreamStreamCall:
    return channel.stream_stream("/Triton/Converse")()


async def all_is_told(channel: grpc.aio.Channel) -> None:
    """The server has heard whatever was said on this connection before."""
    for _ in range(8):
        await channel.unary_unary("/Triton/Echo")(b"heard?")


async def drop(message: bytes) -> None:
    assert message == b"an answer"


async def test_who_leaves_before_the_first_answer_is_gone_behind_it() -> None:
    triton = Triton()
    async with channel_to(triton) as channel:
        stream = TritonStream(stream_of(channel), drop)
        await stream.ask(b"a request")
        await triton.is_asked.wait()
        leaving = asyncio.create_task(stream.leave())
        await all_is_told(channel)
        triton.may_answer.set()
        await asyncio.wait_for(leaving, WAIT_S)
        await asyncio.wait_for(triton.is_left.wait(), WAIT_S)
    assert triton.seen == ["asked", "answers", "will hear no more", "left"]


async def test_a_client_that_is_cancelled_while_it_waits_cancels_nothing_yet() -> None:
    triton = Triton()
    async with channel_to(triton) as channel:
        stream = TritonStream(stream_of(channel), drop)
        await stream.ask(b"a request")
        client = asyncio.create_task(stream.ends())
        await triton.is_asked.wait()
        client.cancel()
        await asyncio.wait({client})
        await all_is_told(channel)
        triton.may_answer.set()
        await asyncio.wait_for(stream.leave(), WAIT_S)
        await asyncio.wait_for(triton.is_left.wait(), WAIT_S)
    assert client.cancelled()
    assert triton.seen == ["asked", "answers", "will hear no more", "left"]


async def test_answers_that_cannot_be_passed_on_end_nothing_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client's stream is gone before anybody is told."""
    monkeypatch.setattr(streams, "_BEHIND_FIRST_S", WAIT_S)

    async def fail(_: bytes) -> None:
        raise asyncio.InvalidStateError

    triton = Triton()
    triton.may_answer.set()
    async with channel_to(triton) as channel:
        stream = TritonStream(stream_of(channel), fail)
        await stream.ask(b"a request")
        with pytest.raises(asyncio.InvalidStateError):
            await stream.ends()
        leaving = asyncio.create_task(stream.leave())
        await all_is_told(channel)
        assert "left" not in triton.seen
        leaving.cancel()


@pytest.mark.parametrize("asked", [False, True])
async def test_a_stream_that_gets_no_answer_is_left_all_the_same(
    monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """At once where none was asked for."""
    monkeypatch.setattr(streams, "LINGER_S", 0.05 if asked else 2 * WAIT_S)
    triton = Triton()
    async with channel_to(triton) as channel:
        call = stream_of(channel)
        stream = TritonStream(call, drop)
        await call.wait_for_connection()
        if asked:
            await stream.ask(b"a request")
        await asyncio.wait_for(stream.leave(), WAIT_S)
        if asked:
            await asyncio.wait_for(triton.is_left.wait(), WAIT_S)
    assert "answers" not in triton.seen

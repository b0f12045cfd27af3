"""When the guard cancels a stream of Triton's whose client has left."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import grpc
import pytest
from grpc.aio import ServicerContext, StreamStreamCall
from tritonclient.grpc import service_pb2

from card_guard.admission import Admission
from card_guard.proxy import Proxy, TritonStream

WAIT_S = 30.0
ASKED_NO_MORE_AND_LEFT = ["asked", "answers", "will hear no more", "left"]


class Triton:
    """Takes requests, answers once it may, and then goes on until it is cancelled."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.failure: tuple[grpc.StatusCode, str] | None = None
        self.may_answer = asyncio.Event()
        self.is_asked = asyncio.Event()
        self.is_left = asyncio.Event()

    async def converse(self, requests: AsyncIterator[bytes], context: ServicerContext) -> None:
        try:
            async for _ in requests:
                self.seen.append("asked")
                self.is_asked.set()
                await self.may_answer.wait()
                if self.failure is not None:
                    await context.abort(*self.failure)
                self.seen.append("answers")
                await context.write(b"an answer")
            self.seen.append("will hear no more")
            if self.is_asked.is_set():
                await asyncio.Event().wait()
        finally:
            self.seen.append("left")
            self.is_left.set()


@asynccontextmanager
async def channel_to_server(
    handlers: Sequence[grpc.GenericRpcHandler],
) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server(handlers=handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


def channel_to(triton: Triton) -> AbstractAsyncContextManager[grpc.aio.Channel]:
    converse = grpc.stream_stream_rpc_method_handler(triton.converse)
    handlers = {
        "Triton": {"Converse": converse, "Echo": grpc.unary_unary_rpc_method_handler(echo)},
        "inference.GRPCInferenceService": {"ModelStreamInfer": converse},
    }
    return channel_to_server(
        [grpc.method_handlers_generic_handler(*service) for service in handlers.items()]
    )


async def echo(message: bytes, _: ServicerContext) -> bytes:
    return message


async def come_and_go(guarded: grpc.aio.Channel, triton: Triton) -> None:
    call = guarded.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
    await call.write(infer_request())
    await triton.is_asked.wait()
    call.cancel()


async def all_is_told(channel: grpc.aio.Channel) -> None:
    """The server has heard whatever was said on this connection before."""
    for _ in range(8):
        await channel.unary_unary("/Triton/Echo")(b"heard?")


@pytest.fixture(scope="module", autouse=True)
def _only_what_is_new_is_collected() -> Iterator[None]:
    """Everything that other tests loaded takes seconds to look through."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
async def _nothing_is_reported() -> AsyncIterator[None]:
    """By asyncio, of a task whose exception was not read."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: reported.append(about))
    yield
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []


async def test_a_client_that_leaves_the_guard_is_gone_behind_the_first_answer() -> None:
    triton = Triton()
    async with channel_to(triton) as channel, channel_to_guard(channel) as guarded:
        await come_and_go(guarded, triton)
        await all_is_told(channel)
        triton.may_answer.set()
        await asyncio.wait_for(triton.is_left.wait(), WAIT_S)
    assert triton.seen == ASKED_NO_MORE_AND_LEFT


async def test_a_server_that_goes_while_it_is_asked_is_said_to_be_away() -> None:
    """gRPC reads no status then, and calls that an internal error."""
    triton = Triton()
    triton.failure = grpc.StatusCode.INTERNAL, "Internal error from Core"
    triton.may_answer.set()
    async with channel_to(triton) as channel, channel_to_guard(channel) as guarded:
        call = guarded.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        await call.write(infer_request())
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await asyncio.wait_for(call.read(), WAIT_S)
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "try again" in (failed.value.details() or "")


async def test_more_than_may_linger_are_cancelled_at_once() -> None:
    triton = Triton()
    async with channel_to(triton) as channel, channel_to_guard(channel, 0) as guarded:
        await come_and_go(guarded, triton)
        await asyncio.wait_for(triton.is_left.wait(), WAIT_S)
    assert triton.seen == ["asked", "left"]


async def requests() -> AsyncIterator[bytes]:
    """One, of a client that may ask more."""
    yield infer_request()
    await asyncio.Event().wait()


def infer_request() -> bytes:
    message: bytes = service_pb2.ModelInferRequest(model_name="ensemble").SerializeToString()
    return message


def channel_to_guard(
    triton: grpc.aio.Channel, most_leaving: int = 8
) -> AbstractAsyncContextManager[grpc.aio.Channel]:
    return channel_to_server([Proxy(triton, ["ensemble"], Admission(1024, 10.0), most_leaving)])


TIME_TO_HEAR_S = 0.2
"""Of a stand-in that may get no processor for a while."""


def stream_of(channel: grpc.aio.Channel) -> StreamStreamCall:
    return channel.stream_stream("/Triton/Converse")()


async def stream_whose_client_left(channel: grpc.aio.Channel, triton: Triton) -> TritonStream:
    """Asked, and still unanswered; the task that waited for its end was cancelled."""
    stream = TritonStream(stream_of(channel), drop, behind_response_s=TIME_TO_HEAR_S)
    await stream.ask(b"a request")
    client = asyncio.create_task(stream.ends())
    await triton.is_asked.wait()
    client.cancel()
    await asyncio.wait({client})
    assert client.cancelled()
    return stream


async def drop(message: bytes) -> None:
    assert message == b"an answer"


async def test_a_client_that_is_cancelled_while_it_waits_cancels_nothing_yet() -> None:
    triton = Triton()
    async with channel_to(triton) as channel:
        stream = await stream_whose_client_left(channel, triton)
        await all_is_told(channel)
        triton.may_answer.set()
        await asyncio.wait_for(stream.leave(lingers=True), WAIT_S)
        await asyncio.wait_for(triton.is_left.wait(), WAIT_S)
    assert triton.seen == ASKED_NO_MORE_AND_LEFT

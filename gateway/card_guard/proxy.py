"""Forwards the calls of Triton's gRPC that are meant for clients, byte for byte.

A stream is cancelled at a moment at which Triton frees all of its memory: Triton 2.51 leaks 32 KiB
for a stream that is cancelled while more requests may come, 17 KiB for one that is cancelled
between its request and its first response, and sometimes for one that is cancelled together with
that response. Clients that come and go could fill the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from functools import partial

import grpc
from grpc.aio import ServicerContext, StreamStreamCall
from tritonclient.grpc import service_pb2

from card_client.errors import NO_STATUS
from card_guard.admission import Admission, FullError, LostError, Place
from card_guard.request import RequestError, check_request

LINGER_S = 3.0
"""Most seconds until the cancellation. `card` sends a stream's first response when its text begins,
or after a second in the queue. For a whole text the first response is the last; only then does
Triton see a cancellation."""
STREAM_ENDED = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""Errors of writing to a stream that Triton or the client has ended."""


class TritonStream:
    """Reads and writes in tasks of its own, because cancelling a client's task would make gRPC
    cancel the stream at once.

    call    the stream, still without a request
    answer  called with every message of Triton, until `is_left`
    linger_s           most seconds until the cancellation of a stream that was left
    behind_response_s  seconds from the first response to the cancellation; Triton frees the memory
                       just behind the response
    """

    def __init__(
        self,
        call: StreamStreamCall,
        answer: Callable[[bytes], Awaitable[None]],
        *,
        linger_s: float = LINGER_S,
        behind_response_s: float = 0.01,
    ) -> None:
        self._call = call
        self._linger_s = linger_s
        self._behind_response_s = behind_response_s
        self._answer = answer
        self._is_asked = False
        self._has_answered = asyncio.Event()
        self._writing: asyncio.Future[None] | None = None
        self._answering = asyncio.ensure_future(self._pass_answers_on())
        self.is_left = False

    async def ask(self, message: bytes) -> None:
        self._is_asked = True
        self._has_answered.clear()
        await self._unharmed(self._call.write(message))

    async def ask_no_more(self) -> None:
        await self._unharmed(self._call.done_writing())

    async def ends(self) -> None:
        """Returns when Triton has ended the stream. Raises `grpc.aio.AioRpcError` if it failed."""
        await asyncio.shield(self._answering)

    def leave(self, *, lingers: bool) -> Coroutine[None, None, None]:
        """Drop all further answers. The returned coroutine cancels a stream that has not ended: at
        once, or if it `lingers` as soon as that costs no memory in Triton."""
        self.is_left = True
        return self._end(lingers=lingers)

    async def _unharmed(self, writing: Awaitable[None]) -> None:
        self._writing = asyncio.ensure_future(writing)
        await asyncio.shield(self._writing)

    async def _end(self, *, lingers: bool) -> None:
        try:
            if lingers and not self._call.done():
                with contextlib.suppress(asyncio.TimeoutError, *STREAM_ENDED):
                    await asyncio.wait_for(self._may_be_cancelled(), self._linger_s)
        finally:
            self._call.cancel()
            for task in filter(None, (self._writing, self._answering)):
                task.cancel()  # its error does not matter
                await asyncio.wait({task})

    async def _may_be_cancelled(self) -> None:
        if self._writing is not None:
            await asyncio.wait({self._writing})
        await self._call.done_writing()
        if self._is_asked:
            await self._has_answered.wait()
            await asyncio.sleep(self._behind_response_s)
        else:  # Triton itself ends a stream without requests
            await self._call.code()

    async def _pass_answers_on(self) -> None:
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self._has_answered.set()
                await self._answer(message)
        finally:
            self._has_answered.set()


_TRITON = "/inference.GRPCInferenceService/"
_STREAM = f"{_TRITON}ModelStreamInfer"
_INFER = f"{_TRITON}ModelInfer"
_ANSWERED_ONCE = frozenset(
    {
        _INFER,
        *(
            _TRITON + call
            for call in (
                "ServerLive",
                "ServerReady",
                "ServerMetadata",
                "ModelReady",
                "ModelMetadata",
                "ModelConfig",
                "ModelStatistics",
            )
        ),
        "/grpc.health.v1.Health/Check",
    }
)
"""Allowed calls. Model control, shared memory, traces and logs are not for clients."""

_AWAY = "UNAVAILABLE: the server behind this port is not there, or not yet; try again"
"""The error hides the server's address from clients."""

_FULL = "as many calls are open as are taken at a time (--calls); try again"
_IDLE = "nothing was said in this call, and its place was wanted (--calls, --idle-s); call again"

_OF_THE_CONNECTION = frozenset({"user-agent", "content-type", "te"})
"""Metadata that gRPC writes itself, besides what begins with `grpc-`."""


class Proxy(grpc.GenericRpcHandler):  # type: ignore[misc]  # mypy skips gRPC
    """Checks calls, and answers them by calling Triton through `channel`.

    models        models that clients may call
    admission     limits the calls that are open at a time
    most_leaving  most streams of clients that left, which wait for their cancellation
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        models: Collection[str],
        admission: Admission,
        most_leaving: int,
    ) -> None:
        self._channel = channel
        self._admission = admission
        self._check = partial(check_request, models=frozenset(models))
        self._most_leaving = most_leaving
        self._leaving: set[asyncio.Task[None]] = set()

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        method = handler_call_details.method
        # All calls are streams here, because gRPC would wait forever for a unary call's message.
        if method == _STREAM:
            return grpc.stream_stream_rpc_method_handler(partial(self._admitted, self._stream))
        if method in _ANSWERED_ONCE:
            answer_once = partial(self._answer_once, method)
            return grpc.stream_stream_rpc_method_handler(partial(self._admitted, answer_once))
        return None

    async def _admitted(
        self,
        handle: Callable[[AsyncIterator[bytes], ServicerContext, Place], Awaitable[None]],
        requests: AsyncIterator[bytes],
        context: ServicerContext,
    ) -> None:
        try:
            with self._admission.place() as place:
                await handle(requests, context, place)
        except FullError:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _FULL)
        except LostError:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _IDLE)

    async def _answer_once(
        self,
        method: str,
        requests: AsyncIterator[bytes],
        context: ServicerContext,
        place: Place,
    ) -> None:
        message = await place.hold(anext(aiter(requests), None))
        if message is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "there is no message in the call")
            return
        place.asked()
        if method == _INFER:
            try:
                self._check(message)
            except RequestError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        call = self._channel.unary_unary(method)
        try:
            answer: bytes = await call(
                message, metadata=_metadata(context), timeout=context.time_remaining()
            )
        except grpc.aio.AioRpcError as error:
            await self._pass_on(error, context)
        await context.write(answer)

    async def _stream(
        self, requests: AsyncIterator[bytes], context: ServicerContext, place: Place
    ) -> None:
        """Forward one stream of a client as one stream of Triton. A refused request gets an error
        in the stream, as from Triton; the other requests continue."""
        one_at_a_time = asyncio.Lock()

        async def answer(message: bytes) -> None:
            place.answered()
            async with one_at_a_time:
                if not stream.is_left:
                    await context.write(message)

        stream = TritonStream(self._open_stream(context), answer)
        asking = asyncio.create_task(self._ask(requests, stream, answer, place))
        try:
            await place.hold(stream.ends())
        except grpc.aio.AioRpcError as error:
            await self._pass_on(error, context)
        finally:  # also when the client left
            asking.cancel()
            self._leave(stream)

    def _open_stream(self, context: ServicerContext) -> StreamStreamCall:
        # The client's deadline ends its call, which ends this call.
        left_s = context.time_remaining()
        return self._channel.stream_stream(_STREAM)(
            metadata=_metadata(context),
            timeout=None if left_s is None else left_s + 2 * LINGER_S,
        )

    def _leave(self, stream: TritonStream) -> None:
        lingers = len(self._leaving) < self._most_leaving
        task = asyncio.create_task(stream.leave(lingers=lingers))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _pass_on(self, error: grpc.aio.AioRpcError, context: ServicerContext) -> None:
        """End a call with Triton's status, or report that Triton is not running."""
        away = error.code() is grpc.StatusCode.UNAVAILABLE
        lost = away and self._channel.get_state() is not grpc.ChannelConnectivity.READY
        if lost or error.details() == NO_STATUS:
            await context.abort(grpc.StatusCode.UNAVAILABLE, _AWAY)
        await context.abort(error.code(), error.details() or "")

    async def _ask(
        self,
        requests: AsyncIterator[bytes],
        stream: TritonStream,
        answer: Callable[[bytes], Awaitable[None]],
        place: Place,
    ) -> None:
        try:
            async for message in requests:
                place.asked()
                try:
                    self._check(message)
                except RequestError as error:
                    await answer(_refusal(error))
                else:
                    await stream.ask(message)
            await stream.ask_no_more()
        except STREAM_ENDED:
            return  # its reader knows


def _refusal(error: RequestError) -> bytes:
    refused = service_pb2.ModelStreamInferResponse(error_message=str(error))
    refused.infer_response.id = error.request_id
    message: bytes = refused.SerializeToString()
    return message


def _metadata(context: ServicerContext) -> tuple[tuple[str, str | bytes], ...]:
    """The client's own metadata, such as a trace's parent."""
    return tuple(
        (name, value)
        for name, value in context.invocation_metadata() or ()
        if name not in _OF_THE_CONNECTION and not name.startswith("grpc-")
    )

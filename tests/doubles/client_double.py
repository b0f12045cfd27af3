"""A stand-in for Triton that speaks real gRPC, for the client's tests.

It records what arrives and answers what a test tells it to.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

# tritonclient ships no types: a `ModelInferRequest` and `ModelStreamInferResponse`s.
Request: TypeAlias = Any
Responses: TypeAlias = Iterable[Any]

# Both are reached only when the promise under test is broken. A held answer outlasts the test's
# patience, so that its end is never taken for the client's leaving.
LIMIT_S = 5.0
HOLD_S = 20.0

_PACK = {int: ("INT32", "<i"), float: ("FP32", "<f")}


def response(**outputs: str | int | float) -> service_pb2.ModelStreamInferResponse:
    """One response; a text becomes BYTES, an int INT32, a float FP32, as the server sends them."""
    answer = service_pb2.ModelInferResponse(model_name="ensemble", model_version="1")
    for name, value in outputs.items():
        if isinstance(value, str):
            data = value.encode()
            dtype, raw = "BYTES", struct.pack("<I", len(data)) + data
        else:
            dtype, layout = _PACK[type(value)]
            raw = struct.pack(layout, value)
        shape = [1] if name == "text_output" else [1, 1]
        answer.outputs.add(name=name, datatype=dtype, shape=shape)
        answer.raw_output_contents.append(raw)
    return service_pb2.ModelStreamInferResponse(infer_response=answer)


def refusal(message: str) -> service_pb2.ModelStreamInferResponse:
    """An error as Triton puts it on a stream: in words, without a status."""
    return service_pb2.ModelStreamInferResponse(error_message=message)


class TritonDouble(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """One server; `answer` maps a request to its responses and may be replaced by a test."""

    def __init__(self) -> None:
        self.address = ""
        self.answer: Callable[[Request], Responses] = lambda request: [
            response(text_output="done", finish_reason="stop")
        ]
        self.requests: list[Request] = []
        self.deadlines_s: list[float | None] = []
        self.metadata: list[dict[str, str]] = []
        self.arrived = threading.Event()
        self.client_left = threading.Event()
        self.ready = True
        self.models_ready = {"ensemble": True, "draft": False}
        self.parameters: dict[str, str] | None = {}

    def hold(self, *first: service_pb2.ModelStreamInferResponse) -> None:
        """Answers with `first` and then with nothing more for as long as the client listens."""

        def answer(request: Request) -> Responses:
            yield from first
            self.client_left.wait(HOLD_S)

        self.answer = answer

    def wait_until_arrived(self) -> bool:
        return self.arrived.wait(LIMIT_S)

    def wait_until_client_left(self) -> bool:
        return self.client_left.wait(LIMIT_S)

    def ModelStreamInfer(
        self, request_iterator: Iterator[Request], context: grpc.ServicerContext
    ) -> Responses:
        context.add_callback(self.client_left.set)
        for request in request_iterator:
            self.requests.append(request)
            self.deadlines_s.append(context.time_remaining())
            self.metadata.append(dict(context.invocation_metadata()))
            self.arrived.set()
            yield from self.answer(request)

    def ServerReady(
        self, request: service_pb2.ServerReadyRequest, context: grpc.ServicerContext
    ) -> service_pb2.ServerReadyResponse:
        return service_pb2.ServerReadyResponse(ready=self.ready)

    def ModelReady(
        self, request: service_pb2.ModelReadyRequest, context: grpc.ServicerContext
    ) -> service_pb2.ModelReadyResponse:
        return service_pb2.ModelReadyResponse(ready=self.models_ready.get(request.name, False))

    def ModelConfig(
        self, request: service_pb2.ModelConfigRequest, context: grpc.ServicerContext
    ) -> service_pb2.ModelConfigResponse:
        if self.parameters is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "")
        answer = service_pb2.ModelConfigResponse()
        for name, value in (self.parameters or {}).items():
            answer.config.parameters[name].string_value = value
        return answer


@contextmanager
def served() -> Iterator[TritonDouble]:
    """A double listening on a free port of the loopback interface."""
    double = TritonDouble()
    server = grpc.server(ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(double, server)
    double.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield double
    finally:
        double.client_left.set()
        server.stop(grace=None).wait()

"""What ends this version of Triton does not come past the guard; everything else does."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import grpc
import pytest
import tritonclient.grpc as triton
from certificates import Certificates
from running_doors import running_guard
from running_service import UNLIKE_OTHERS, RunningService
from tritonclient.grpc import service_pb2, service_pb2_grpc

from card_client import CardClient, CardError, GenerateRequest

PROMPT = "def fibonacci(n):"


@pytest.fixture(scope="module")
def guard(server: RunningService) -> Iterator[str]:
    with running_guard(server, "--message-bytes=250000") as running:
        yield running


@pytest.fixture(autouse=True)
def survives(server: RunningService) -> Iterator[None]:
    """No request of this file may cost the server its life."""
    pid = server.server_pid
    yield
    assert server.server_pid == pid
    assert server.health["state"] == "ready"


def request_of(
    prompt: str = PROMPT, tokens: int = 4, identity: str = ""
) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name="ensemble", id=identity)
    for name, datatype, content in (
        ("text_input", "BYTES", len(prompt).to_bytes(4, "little") + prompt.encode()),
        ("max_tokens", "INT32", tokens.to_bytes(4, "little")),
        ("stream", "BOOL", b"\1"),
    ):
        request.inputs.add(name=name, datatype=datatype, shape=[1, 1])
        request.raw_input_contents.append(content)
    return request


def classified() -> service_pb2.ModelInferRequest:
    request = request_of()
    request.outputs.add(name="text_output").parameters["classification"].int64_param = 1
    return request


def overflowing(model: str) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="input_ids", datatype="INT32", shape=[1, 1 << 62])
    request.raw_input_contents.append(b"")
    return request


def in_shared_memory() -> service_pb2.ModelInferRequest:
    request = request_of()
    request.inputs[0].parameters["shared_memory_region"].string_param = "mine"
    return request


def shapeless() -> service_pb2.ModelInferRequest:
    request = request_of()
    request.inputs[1].shape[:] = [1, -1]
    return request


def bottomless() -> service_pb2.ModelInferRequest:
    """Whose elements would take minutes to multiply."""
    request = request_of()
    request.inputs[1].shape[:] = [1 << 62] * 20_000
    return request


def nameless() -> service_pb2.ModelInferRequest:
    return service_pb2.ModelInferRequest(model_name="x" * 100_000)


def crowded(part: str) -> service_pb2.ModelInferRequest:
    """With so many of a part that to look at them would hold everybody up."""
    request = request_of()
    if part == "raw_input_contents":
        request.raw_input_contents.extend([b""] * 100_000)
    elif part == "parameters":
        for number in range(10_000):
            request.parameters[str(number)].bool_param = True
    elif part == "of an input":
        for number in range(10_000):
            request.inputs[0].parameters[str(number)].bool_param = True
    else:
        tensors = getattr(request, part)
        for _ in range(100_000):
            tensors.add()
    return request


HOSTILE = {
    "classification": (classified(), "'text_output' cannot be classified"),
    "another model": (overflowing("card"), "'card' is not served here; ask one of"),
    "overflow": (overflowing("ensemble"), "'input_ids' has shape .1, 4611686018427387904."),
    "negative": (shapeless(), "'max_tokens' has shape .1, -1."),
    "bottomless": (bottomless(), "at most 8 dimensions"),
    "nameless": (nameless(), "'xxx[x]*[.]{3}' is not served here"),
    "inputs": (crowded("inputs"), "100003 inputs; at most 64"),
    "outputs": (crowded("outputs"), "100000 outputs; at most 64"),
    "contents": (crowded("raw_input_contents"), "100003 raw input contents; at most 64"),
    "parameters": (crowded("parameters"), "10000 parameters; at most 64"),
    "an input's parameters": (crowded("of an input"), "'text_input' has 10000 parameters"),
    "shared memory": (in_shared_memory(), "'text_input' is in shared memory"),
}


def streamed(
    guard: str, *requests: service_pb2.ModelInferRequest
) -> list[service_pb2.ModelStreamInferResponse]:
    with grpc.insecure_channel(guard) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        return list(stub.ModelStreamInfer(iter(requests), timeout=60))


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_request_that_triton_could_not_bear_is_refused_in_its_stream_and_alone(
    guard: str, kind: str
) -> None:
    request, problem = HOSTILE[kind]
    request.id = "bad-1"
    (reply,) = streamed(guard, request)
    assert reply.infer_response.id == "bad-1"
    assert len(reply.error_message) < 400
    assert re.search(f"INVALID_ARGUMENT: .*{problem}", reply.error_message)
    with (
        grpc.insecure_channel(guard) as channel,
        pytest.raises(grpc.RpcError, match=problem) as refused,
    ):
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=30)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_refused_request_takes_no_other_of_its_stream_along(guard: str) -> None:
    replies = streamed(
        guard, request_of(identity="good-1"), classified(), request_of(identity="good-2")
    )
    refused = [reply for reply in replies if reply.error_message]
    assert len(refused) == 1
    answered = {reply.infer_response.id for reply in replies if not reply.error_message}
    assert answered == {"good-1", "good-2"}


def test_what_is_no_request_is_refused(guard: str) -> None:
    with grpc.insecure_channel(guard) as channel:
        path = "/inference.GRPCInferenceService/Model"
        (reply,) = channel.stream_stream(f"{path}StreamInfer")(iter([b"\xff\xff"]), timeout=30)
        said = service_pb2.ModelStreamInferResponse.FromString(reply).error_message
        assert said.startswith("INVALID_ARGUMENT: ")
        with pytest.raises(grpc.RpcError, match="this is no ModelInferRequest"):
            channel.unary_unary(f"{path}Infer")(b"\xff\xff", timeout=30)


def test_a_message_that_is_too_large_is_refused(guard: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        streamed(guard, request_of(prompt="x" * 300_000))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "call", ["RepositoryIndex", "RepositoryModelUnload", "LogSettings", "SystemSharedMemoryStatus"]
)
def test_what_is_no_clients_is_unknown(guard: str, call: str) -> None:
    request = getattr(service_pb2, f"{call}Request")()
    with grpc.insecure_channel(guard) as channel, pytest.raises(grpc.RpcError) as refused:
        getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), call)(request, timeout=30)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_what_tritonclient_asks_besides_is_answered(guard: str, server: RunningService) -> None:
    with (
        triton.InferenceServerClient(guard) as guarded,
        triton.InferenceServerClient(server.grpc) as direct,
    ):
        assert guarded.is_server_live()
        assert guarded.is_server_ready()
        assert guarded.is_model_ready("ensemble")
        assert guarded.get_server_metadata() == direct.get_server_metadata()
        for ask in ("get_model_metadata", "get_model_config"):
            assert getattr(guarded, ask)("ensemble") == getattr(direct, ask)("ensemble")


async def test_texts_and_refusals_of_the_service_are_the_same(
    guard: str, server: RunningService
) -> None:
    request = GenerateRequest(PROMPT, 24, temperature=0.7, seed=5)
    async with CardClient(guard) as guarded, CardClient(server.grpc) as direct:
        assert await guarded.generate(request) == await direct.generate(request)
        streamed = [delta.text async for delta in guarded.stream(request)]
        assert "".join(streamed) == (await direct.generate(request)).text
        wrong = GenerateRequest(PROMPT, 1 << 20)
        said = []
        for client in (guarded, direct):
            with pytest.raises(CardError) as refused:
                await client.generate(wrong)
            said.append((refused.value.code, refused.value.message))
        assert said[0] == said[1]


async def test_a_client_that_leaves_frees_its_slot(guard: str, server: RunningService) -> None:
    request = GenerateRequest(PROMPT, 1000, **UNLIKE_OTHERS)
    async with CardClient(guard) as client:
        async for _ in client.stream(request):
            break
    await server.until(lambda: server.metric("card_slots_in_use") == 0, "the slot is free")


async def test_a_server_that_is_away_is_unavailable(server: RunningService) -> None:
    with running_guard(server, "--triton=127.0.0.1:1") as guard:
        async with CardClient(guard) as client:
            with pytest.raises(CardError) as refused:
                await client.generate(GenerateRequest(PROMPT, 4), timeout_s=20)
    assert refused.value.code == "UNAVAILABLE"
    assert "not there, or not yet" in refused.value.message
    assert "127.0.0.1:1" not in refused.value.message, "where it would be is no stranger's business"


async def test_guard_with_mutual_tls_when_a_certificate_is_unknown_refuses_the_client(
    server: RunningService, certificates: Certificates
) -> None:
    chain, key = certificates.server
    options = f"--tls-cert={chain}", f"--tls-key={key}", f"--tls-client-ca={certificates.authority}"
    trusted = certificates.trusting(certificates.client)
    with running_guard(server, *options, credentials=trusted) as guard:
        for ours, admitted in (
            (certificates.client, True),
            (certificates.stranger, False),
            (None, False),
        ):
            with grpc.secure_channel(guard, certificates.trusting(ours)) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                try:
                    live = stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=10).live
                except grpc.RpcError as error:
                    live = error.code() is not grpc.StatusCode.UNAVAILABLE
                assert live is admitted


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tls-cert=/nowhere.pem"], "the TLS cert file /nowhere.pem does not exist"),
        (["--port=1", "--host=192.0.2.1"], "cannot listen on 192.0.2.1:1"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(options: list[str], said: str) -> None:
    command = [sys.executable, "-m", "card_guard", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert said in line

"""Every door but the front door is closed: model control, the engines, the segment, the logs."""

from __future__ import annotations

import re
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from certificates import Certificates
from running_doors import MODEL, running_gateway
from running_service import Refused, RunningService, StartService
from traces import Traces
from tritonclient.grpc import service_pb2, service_pb2_grpc

from card.serving.supervision.processes import REGIONS

PROMPT = "def fibonacci(n):"
MARK = "Zanzibar-4711"
"""Appears in no log unless it was sent in a request."""

RESTRICTED_HTTP = (
    ("POST", "/v2/repository/index", "{}"),
    ("POST", "/v2/repository/models/card/load", "{}"),
    ("POST", "/v2/repository/models/card/unload", "{}"),
    ("GET", "/v2/systemsharedmemory/status", None),
    (
        "POST",
        "/v2/systemsharedmemory/region/mine/register",
        '{"key": "/any", "offset": 0, "byte_size": 64}',
    ),
    ("POST", "/v2/systemsharedmemory/unregister", "{}"),
    ("GET", "/v2/cudasharedmemory/status", None),
    ("POST", "/v2/cudasharedmemory/region/mine/register", "{}"),
    ("GET", "/v2/trace/setting", None),
    ("POST", "/v2/trace/setting", '{"trace_level": ["TENSORS"]}'),
    ("POST", "/v2/models/card/trace/setting", '{"trace_level": ["TENSORS"]}'),
    ("GET", "/v2/logging", None),
    ("POST", "/v2/logging", '{"log_verbose_level": 9}'),
)
RESTRICTED_GRPC: dict[str, Any] = {
    "RepositoryIndex": service_pb2.RepositoryIndexRequest(),
    "RepositoryModelLoad": service_pb2.RepositoryModelLoadRequest(model_name="card"),
    "RepositoryModelUnload": service_pb2.RepositoryModelUnloadRequest(model_name="card"),
    "SystemSharedMemoryStatus": service_pb2.SystemSharedMemoryStatusRequest(),
    "SystemSharedMemoryRegister": service_pb2.SystemSharedMemoryRegisterRequest(
        name="mine", key="/any", byte_size=64
    ),
    "SystemSharedMemoryUnregister": service_pb2.SystemSharedMemoryUnregisterRequest(),
    "CudaSharedMemoryStatus": service_pb2.CudaSharedMemoryStatusRequest(),
    "CudaSharedMemoryRegister": service_pb2.CudaSharedMemoryRegisterRequest(name="mine"),
    "TraceSetting": service_pb2.TraceSettingRequest(),
    "LogSettings": service_pb2.LogSettingsRequest(),
}
HEADERS: tuple[dict[str, str], ...] = ({}, {"card-supervisor": "guess"}, {"card-supervisor": ""})


# --- what only the supervisor may call -----------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "body"), RESTRICTED_HTTP)
def test_restricted_apis_are_refused_over_http(
    server: RunningService, method: str, path: str, body: str | None
) -> None:
    data = None if body is None else body.encode()
    for headers in HEADERS:
        request = urllib.request.Request(f"{server.http}{path}", data, headers, method=method)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        assert refused.value.code == 403
        assert "restricted" in refused.value.read().decode()
    assert server.health["state"] == "ready"


@pytest.mark.parametrize("call", RESTRICTED_GRPC)
def test_restricted_protocols_are_refused_over_grpc(server: RunningService, call: str) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        method = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), call)
        for headers in HEADERS:
            metadata = [(f"triton-grpc-protocol-{name}", value) for name, value in headers.items()]
            with pytest.raises(grpc.RpcError, match="restricted"):
                method(RESTRICTED_GRPC[call], metadata=metadata, timeout=10)
    assert server.health["state"] == "ready"


def test_every_call_of_the_server_is_restricted_or_meant_for_clients() -> None:
    """A new version of the server with another call does not go unnoticed."""
    for_clients = {
        "ServerLive",
        "ServerReady",
        "ServerMetadata",
        "ModelReady",
        "ModelMetadata",
        "ModelConfig",
        "ModelStatistics",
        "ModelInfer",
        "ModelStreamInfer",
    }
    same_kind = {"CudaSharedMemoryUnregister"}
    known = {
        m.name for m in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    }
    assert known == for_clients | same_kind | set(RESTRICTED_GRPC)


def test_the_header_stands_in_no_command_line_and_no_log(server: RunningService) -> None:
    line = Path(f"/proc/{server.server_pid}/cmdline").read_bytes().decode()
    values = re.findall(r"card-supervisor=([^\0]*)", line)
    assert len(values) == 2
    assert {*"".join(values)} == {"*"}
    assert not re.search(r"\b[0-9a-f]{64}\b", server.log.read_text(errors="replace"))


# --- the engines ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["draft", "target"])
async def test_an_attach_without_the_pools_key_is_refused_and_changes_nothing(
    server: RunningService, model: str
) -> None:
    pid, far = server.health["models"][model]["pid"], _flat(1 << 62)
    for key in ("", "guess", "0" * 64, "\x00", "k" * 100_000):
        with pytest.raises(Refused, match="PERMISSION_DENIED"):
            await server.ask(model=model, key=_flat(key.encode()), deadline_ns=far)
    for missing, sent in (("key", {"deadline_ns": far}), ("deadline_ns", {"key": _flat(b"x")})):
        with pytest.raises(Refused, match=f"{missing} is missing"):
            await server.ask(model=model, **sent)
    assert server.health["models"][model]["pid"] == pid
    assert server.health["state"] == "ready"


# --- the segment ---------------------------------------------------------------------------------


def test_what_lies_in_shared_memory_is_private(server: RunningService) -> None:
    """Prompts and texts pass through the regions of the stubs."""
    traces = Traces.of(server)
    regions = list(REGIONS.glob(f"{traces.region_prefix}*"))
    assert regions
    for path in (*regions, *traces.files):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["ensemble", "preprocessing", "card"])
async def test_a_text_too_long_to_be_tokenized_is_refused_by_its_bytes(
    server: RunningService, model: str
) -> None:
    most = server.settings.limits.prompt_bytes
    ids = {"input_ids": [5]} if model == "card" else {}
    with pytest.raises(Refused, match=rf"text_input is .* at most {most} bytes"):
        await server.ask(model=model, text_input="a" * (most + 1), **ids)


# --- logs ----------------------------------------------------------------------------------------


async def test_no_prompt_and_no_text_is_logged_unless_asked_for(server: RunningService) -> None:
    await server.text(f"# {MARK}\n{PROMPT}", max_tokens=16)
    server.generate(text_input=MARK, max_tokens=4)
    server.generate(text_input=MARK, max_tokens=1 << 20)
    server.generate(text_input=MARK, decoding=MARK)
    server.generate(text_input=MARK * 10_000, max_tokens=1)
    server.generate(text_input=MARK, bad_words=[MARK] * 1000)
    unknown: dict[str, Any] = {MARK: 1}
    server.generate(text_input=MARK, **unknown)
    server.generate(model=MARK, text_input=MARK)
    with pytest.raises(Refused):
        await server.ask(text_input=MARK, stop_words=["\ud800".encode("utf-8", "surrogatepass")])
    with pytest.raises(Refused):
        await server.ask(text_input=MARK, max_tokens=900, timeout_us=1)
    assert MARK not in server.log.read_text(errors="replace")


# --- TLS -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mutual(start_service: StartService, certificates: Certificates) -> Iterator[RunningService]:
    """A service that asks its gRPC clients for a certificate."""
    chain, key = certificates.server
    arguments = [
        "--grpc-use-ssl=true",
        "--grpc-use-ssl-mutual=true",
        f"--grpc-server-cert={chain}",
        f"--grpc-server-key={key}",
        f"--grpc-root-cert={certificates.authority}",
        "--http-address=127.0.0.1",
    ]
    serving = {"address": "0.0.0.0", "triton_arguments": arguments, "http_inference": False}
    with start_service({"serving": serving}) as service:
        yield service


def test_service_when_it_is_open_without_a_guard_logs_a_warning(mutual: RunningService) -> None:
    assert "unguarded" in mutual.log.read_text()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("ensemble/generate", b'{"text_input": "def f(", "max_tokens": 4}'),
        ("ensemble/generate_stream", b'{"text_input": "def f(", "max_tokens": 4, "stream": true}'),
        ("ensemble/generate", b'{"text_input": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
        (
            "draft/infer",
            b'{"inputs": [{"name": "deadline_ns", "datatype": "INT64", "shape": [8589934592],'
            b' "data": [1]}]}',
        ),
    ],
    ids=["generate", "generate_stream", "bottomless", "huge shape"],
)
def test_inference_over_http_can_be_closed(
    mutual: RunningService, certificates: Certificates, path: str, body: bytes
) -> None:
    """The last two end a server that reads them (SECURITY.md)."""
    address = f"{mutual.http}/v2/models/{path}"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(address, body, timeout=10)
    assert refused.value.code == 403
    with urllib.request.urlopen(f"{mutual.http}/v2/health/live", timeout=10) as live:
        assert live.status == 200
    channel = grpc.secure_channel(mutual.grpc, certificates.trusting(certificates.client))
    assert _streamed_text(channel)


@pytest.mark.parametrize("known", ["nothing", "the authority", "a strange certificate"])
def test_mutual_tls_when_a_certificate_is_unknown_refuses_the_client(
    mutual: RunningService, certificates: Certificates, known: str
) -> None:
    channel = {
        "nothing": lambda: grpc.insecure_channel(mutual.grpc),
        "the authority": lambda: grpc.secure_channel(mutual.grpc, certificates.trusting(None)),
        "a strange certificate": lambda: grpc.secure_channel(
            mutual.grpc, certificates.trusting(certificates.stranger)
        ),
    }[known]()
    with pytest.raises(grpc.RpcError) as refused:
        _streamed_text(channel)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_the_gateway_passes_mutual_tls(mutual: RunningService, certificates: Certificates) -> None:
    chain, key = certificates.client
    trust = (f"--tls-ca={certificates.authority}", f"--tls-cert={chain}", f"--tls-key={key}")
    with running_gateway(mutual, *trust) as gateway:
        answer = gateway.client().completions.create(
            model=MODEL, prompt="def fibonacci(n):", max_tokens=4, temperature=0
        )
        assert answer.choices[0].text


def test_a_later_option_closes_http_to_the_outside(mutual: RunningService) -> None:
    """HTTP knows no TLS, so with TLS HTTP is bound to this machine alone."""
    line = Path(f"/proc/{mutual.server_pid}/cmdline").read_bytes().decode().split("\0")
    assert [a for a in line if a.startswith("--http-address=")][-1] == "--http-address=127.0.0.1"
    port = mutual.settings.serving.http_port
    assert _listens_on(port) == {"127.0.0.1"}
    assert _listens_on(mutual.settings.serving.grpc_port) != {"127.0.0.1"}


def _streamed_text(channel: grpc.Channel) -> str:
    request = service_pb2.ModelInferRequest(model_name="ensemble")
    for name, datatype, content in (
        ("text_input", "BYTES", len(PROMPT).to_bytes(4, "little") + PROMPT.encode()),
        ("max_tokens", "INT32", (4).to_bytes(4, "little")),
    ):
        request.inputs.add(name=name, datatype=datatype, shape=[1, 1])
        request.raw_input_contents.append(content)
    with channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        replies = list(stub.ModelStreamInfer(iter([request]), timeout=30))
    assert [reply.error_message for reply in replies if reply.error_message] == []
    return str(replies[0].infer_response.raw_output_contents[0])


def _flat(value: bytes | int) -> Any:
    """[1], as the engines take it: their models have no batch dimension."""

    kind = np.object_ if isinstance(value, bytes) else np.int64
    return np.array([value], kind)


def _listens_on(port: int) -> set[str]:
    """The IPv4 addresses of this machine at which something listens on `port`."""

    return {
        connection.laddr.ip
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr
        if connection.laddr.port == port
    }

"""`serving.guard`: the supervisor starts the guard on the port that clients know and keeps it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from running_service import UNLIKE_OTHERS, Refused, RunningService, StartService
from test_faults_start import GIVEN_UP, start
from test_guard import PROMPT, classified, overflowing
from tritonclient.grpc import service_pb2_grpc

BOUND = 200_000


@pytest.fixture(scope="module")
def guarded(start_service: StartService) -> Iterator[RunningService]:
    serving = {
        "guard": True,
        "guard_arguments": ["--model=ensemble", "--model=card", f"--message-bytes={BOUND}"],
        "http_inference": False,
    }
    with start_service({"serving": serving}) as running:
        yield running


def guard_of(service: RunningService) -> int:
    return int(service.health["guard"]["pid"])


def is_back(service: RunningService, lost: int) -> bool:
    """Whether another guard than the one that was lost serves."""
    health = service.health
    return bool(health["ready"]) and health["guard"]["pid"] != lost


async def strike(service: RunningService, guard: int, blow: signal.Signals) -> None:
    """Once a stream flows; returns when its client knows."""
    request = {"text_input": PROMPT, "max_tokens": 1000, "stream": True, **UNLIKE_OTHERS}
    async for _ in service.stream(**request):
        with contextlib.suppress(ProcessLookupError):
            os.kill(guard, blow)


def listening(pid: int) -> set[int]:
    """TCP ports on which a process listens."""
    connections = psutil.Process(pid).net_connections("tcp")
    return {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}


async def test_guard_when_a_request_would_end_the_server_refuses_it(
    guarded: RunningService,
) -> None:
    pid = guarded.server_pid
    with grpc.insecure_channel(guarded.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for deadly in (classified(), overflowing("card"), overflowing("postprocessing")):
            (answer,) = stub.ModelStreamInfer(iter([deadly]), timeout=60)
            assert answer.error_message.startswith("INVALID_ARGUMENT: ")
            with pytest.raises(grpc.RpcError) as refused:
                stub.ModelInfer(deadly, timeout=60)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert guarded.generate(text_input=PROMPT)[0] == 403
    assert await guarded.text(PROMPT, max_tokens=8)
    assert guarded.server_pid == pid


def test_clients_reach_the_guard_alone(guarded: RunningService) -> None:
    serving = guarded.settings.serving
    assert serving.grpc_port in listening(guard_of(guarded))
    assert listening(guarded.server_pid) == {serving.http_port, serving.metrics_port}
    (socket,) = Path(guarded.settings.cache.directory).glob("card_run_*/grpc:*")
    assert socket.is_socket()
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_guard_that_dies_or_hangs_is_replaced(
    guarded: RunningService, blow: signal.Signals
) -> None:
    server_pid, lost = guarded.server_pid, guard_of(guarded)
    restarts = guarded.health["guard_restarts"]
    with pytest.raises((Refused, grpc.RpcError)):  # never a text that looks complete
        await strike(guarded, lost, blow)
    await guarded.until(lambda: is_back(guarded, lost), "another guard serves")
    assert guarded.health["guard_restarts"] == restarts + 1
    told = f" event=guard_recovered guard_pid={guard_of(guarded)}"
    await guarded.until(lambda: told in guarded.log.read_text(), "the log says that it is back")
    assert not psutil.pid_exists(lost)
    assert guarded.server_pid == server_pid, "nothing else was lost"
    await guarded.until(lambda: guarded.metric("card_slots_in_use") == 0, "the slot is free")
    assert await guarded.text(PROMPT, max_tokens=8)


async def test_a_guard_that_is_stopped_for_a_moment_goes_on(guarded: RunningService) -> None:
    guard = psutil.Process(guard_of(guarded))
    text = ""
    async for reply in guarded.stream(text_input=PROMPT, max_tokens=64, stream=True):
        if not text:
            guard.suspend()
            await asyncio.sleep(guarded.settings.serving.engine_timeout_s / 4)  # well below it
            guard.resume()
        text += reply.text
    assert text == await guarded.text(PROMPT, max_tokens=64)
    assert guard_of(guarded) == guard.pid


async def test_a_server_that_dies_comes_back_behind_it(guarded: RunningService) -> None:
    lost = guarded.server_pid
    os.kill(lost, signal.SIGKILL)
    await guarded.until_back_without(lost)
    assert await guarded.text(PROMPT, max_tokens=8)


def test_options_that_it_does_not_take_end_the_start() -> None:
    arguments = ["--tls-cert=/nowhere.pem"]
    with tempfile.TemporaryDirectory() as folder:  # a short path: a socket lies in it
        ending = start(Path(folder), {"serving": {"guard": True, "guard_arguments": arguments}})
    assert ending.code == GIVEN_UP
    assert "the guard ended during the start (exit code 2)" in ending.said
    assert "/nowhere.pem does not exist" in ending.said
    assert not ending.was_ready

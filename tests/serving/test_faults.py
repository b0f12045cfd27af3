"""Both engines lost at once, a target of long ago, a server told to end; and a drain at the end.

Single faults of every process are in `test_faults_matrix`, ends of services in `test_faults_end`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from fault_matrix import Answer, Wish, read
from real_pair import DRAFT
from running_service import BACK_S, Overrides, Refused, RunningService, StartService
from traces import TRACES, Traces

from card.cache import ENGINES, SlotState
from card.serving.supervision.processes import find_stubs

PROMPTS = (
    "def fibonacci(n):",
    'def is_prime(number: int) -> bool:\n    """Whether a number is prime."""\n',
    "class Stack:\n    def __init__(self):\n",
    "def merge(left, right):\n    result = []\n    while",
)
DECODINGS = ("card", "card", "card", "draft_then_verify")
MAX_TOKENS = 768
"""A fast machine is still writing when all streams flow."""
HANG_S = 120.0
KEEPS_THE_SERVER = pytest.mark.flaky(reruns=2)
"""Of tests in which no new server may start. Triton aborts if a process is killed that holds one of
its locks: seen once in some 300 kills on a machine with far too much to do."""


@pytest.fixture(scope="module")
def service(
    start_service: StartService, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """Without a cache of the user's, it keeps what its models find out in its run directory. Its
    draft is a copy that a test may move."""
    draft = shutil.copytree(DRAFT, tmp_path_factory.mktemp("copied") / "draft")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CARD_SERVING__CALIBRATION_CACHE")
        patch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
        settings: Overrides = {"serving": {"drain_s": HANG_S}, "draft": {"path": str(draft)}}
        with start_service(settings) as running:
            patch.undo()
            yield running


@pytest.fixture(scope="module")
def right(service: RunningService) -> list[str]:
    """What the target alone writes after each prompt."""
    return service.alone(PROMPTS, max_tokens=MAX_TOKENS, end_id=-1)


# --- what clients see -------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def open_streams(service: RunningService) -> AsyncIterator[list[Answer]]:
    """All prompts at once; the body runs in the midst of every stream, the end awaits theirs."""
    await service.until(lambda: service.state == "ready", "the service is well")
    clients = [Answer(Wish(*each)) for each in zip(PROMPTS, DECODINGS, strict=True)]
    reading = [asyncio.create_task(read(service, client, MAX_TOKENS)) for client in clients]
    try:
        await service.until(lambda: all(client.text for client in clients), "all streams flow")
        assert not any(task.done() for task in reading), "a stream ended before it was disturbed"
        yield clients
        await asyncio.gather(*reading)
    finally:
        for task in reading:
            task.cancel()


# --- the service and its processes ------------------------------------------------------------


async def ended(service: RunningService, outcome: str, before: float = 0) -> None:
    """Wait until one more request ended so and no process, Triton included, is busy with it.

    `card` counts a request a moment before it sends the last response, and Triton lets go of it a
    moment after. If `card` is killed in between, the request is lost, and the supervisor rightly
    starts a new server.
    """
    await service.until(
        lambda: service.metric("card_requests_total", outcome=outcome) > before,
        f"one ended: {outcome}",
    )
    each_twice = (service.server_pid, service.pid_of("card")) * 2  # one may wake the other
    await service.until(lambda: not any(map(is_busy, each_twice)), "card and the server rest")


def found_out(service: RunningService) -> dict[str, int]:
    """The files of what its models found out at load, in its run directory, and when written."""
    files = service.settings.cache.directory.glob("card_run_*/calibration/*.json")
    return {file.name: file.stat().st_mtime_ns for file in files}


def is_busy(pid: int) -> bool:
    """Whether a thread of this process runs, or waits for a core."""
    try:
        stats = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # one ended just now
        return True
    return any(stat.rpartition(")")[2].split()[0] == "R" for stat in stats)


# --- who comes back -----------------------------------------------------------------------------


@KEEPS_THE_SERVER
async def test_engines_come_back_without_a_new_server(service: RunningService) -> None:
    await service.outlast_probation(time.monotonic())  # what another test struck
    server = service.server_pid
    known = found_out(service)
    assert {name.partition("-")[0] for name in known} == {"draft", "target"}
    victims = {engine: service.pid_of(engine) for engine in ENGINES}
    for victim in victims.values():
        os.kill(victim, signal.SIGKILL)
    for victim in victims.values():
        await service.until_back_without(victim)
    await service.until_speculates(PROMPTS[0])
    assert service.server_pid == server
    assert found_out(service) == known, "what was found out at the start was believed"
    assert len(Traces.of(service).paths()) == TRACES


@KEEPS_THE_SERVER
async def test_a_target_that_dies_again_before_it_serves_comes_back_without_a_new_server(
    service: RunningService,
) -> None:
    await service.outlast_probation(time.monotonic())  # what another test struck
    server, victim = service.server_pid, service.pid_of("target")
    with contextlib.closing(service.pool()) as pool:
        os.kill(victim, signal.SIGKILL)
        await service.until(lambda: pool.pid("target") != victim, "the next one is loaded", BACK_S)
        successor = pool.pid("target")
        os.kill(successor, signal.SIGKILL)
    await service.until(lambda: service.state != "ready", "that is noticed")
    await service.until_back_without(successor)
    await service.until_speculates(PROMPTS[0])
    assert service.server_pid == server


@KEEPS_THE_SERVER
async def test_target_killed_as_it_is_loaded_comes_back_while_streams_are_open(
    service: RunningService, right: list[str]
) -> None:
    """Triton by itself waits for the greeting of its process for ever."""
    await service.outlast_probation(time.monotonic())  # what another test struck
    server, victim = service.server_pid, service.pid_of("target")
    async with open_streams(service) as clients:
        os.kill(victim, signal.SIGKILL)
        while (stub := find_stubs(server).get("target")) is None or stub.process.pid == victim:
            os.sched_yield()  # it greets a twentieth of a second after it is born
        stub.process.kill()
        await service.until_back_without(stub.process.pid)
    assert [(client.text, client.error) for client in clients] == [(text, None) for text in right]
    assert service.server_pid == server
    assert len(Traces.of(service).paths()) == TRACES


@KEEPS_THE_SERVER
async def test_texts_go_on_without_a_draft_when_it_does_not_load_until_it_does(
    service: RunningService, right: list[str]
) -> None:
    await service.outlast_probation(time.monotonic())  # what another test struck
    server, victim, draft = service.server_pid, service.pid_of("draft"), service.settings.draft.path
    moved = draft.rename(draft.with_name("moved"))
    try:
        os.kill(victim, signal.SIGKILL)
        await service.until(lambda: service.state == "degraded", "the draft is missed", BACK_S)
        text = await service.text(PROMPTS[0], max_tokens=MAX_TOKENS, end_id=-1)
    finally:
        moved.rename(draft)
    assert text == right[0]
    await service.until_back_without(victim)
    await service.until_speculates(PROMPTS[0])
    assert service.server_pid == server


async def test_server_when_another_program_ends_it_is_replaced_at_once(
    service: RunningService,
) -> None:
    """Triton would stop to listen, and keep its streams open without a word."""
    ending = service.server_pid
    request: dict[str, Any] = {"max_tokens": 1000, "end_id": -1, "decoding": "autoregressive"}
    long = service.stream(text_input=PROMPTS[0], stream=True, **request)
    await anext(long)
    os.kill(ending, signal.SIGTERM)
    with pytest.raises((Refused, grpc.RpcError)):
        async for _ in long:
            pass
    await service.until_back_without(ending)
    told = f" event=server_recovered server_pid={service.server_pid}"
    await service.until(lambda: told in service.log.read_text(), "the log says that it is back")
    assert "it is ending" in service.log.read_text()


@KEEPS_THE_SERVER
async def test_target_of_an_older_epoch_when_it_wakes_harms_no_stream(
    start_service: StartService,
) -> None:
    """While it is stopped in the midst of a text, the client leaves and `card` dies."""
    request: dict[str, Any] = {"max_tokens": MAX_TOKENS, "end_id": -1}
    slots = 2
    prompts = PROMPTS[:slots]
    patient: Overrides = {"serving": {"engine_timeout_s": HANG_S}, "cache": {"slots": slots}}
    with start_service(patient) as service:
        right = [await service.text(p, decoding="autoregressive", **request) for p in prompts]
        server, target = service.server_pid, service.pid_of("target")
        card = service.pid_of("card")
        with contextlib.closing(service.pool()) as pool:
            epoch = pool.epoch
            # Without the ensemble: it would see the client leave at the next delta only.
            stream = service.stream(model="card", input_ids=[3], stream=True, **request)
            async with contextlib.aclosing(stream):
                await anext(stream)
                os.kill(target, signal.SIGSTOP)
            await ended(service, "cancelled")
            assert SlotState.OPEN not in pool.states
            os.kill(card, signal.SIGKILL)
            await service.until(
                lambda: pool.epoch > epoch and service.is_healthy(), "another card is there", BACK_S
            )
            streams = [asyncio.create_task(service.text(p, **request)) for p in prompts]
            await service.until(
                lambda: list(pool.states).count(SlotState.OPEN) == slots - 1,
                "all slots are in use but the one that the target has not let go of",
                BACK_S,
            )
            os.kill(target, signal.SIGCONT)
            assert await asyncio.gather(*streams) == right
            await service.until_back_without(card)
            await service.until(lambda: not pool.states.any(), "all slots are free", BACK_S)
        await service.until_speculates(PROMPTS[0])
        assert (service.server_pid, service.pid_of("target")) == (server, target)


# --- the end ----------------------------------------------------------------------------------


async def refused(service: RunningService, words: str) -> None:
    """Every way to ask is refused now, with these words."""
    with pytest.raises(Refused, match=words):
        await service.ask(text_input="x", max_tokens=4)
    with pytest.raises(Refused, match=words):
        await service.ask(model="card", input_ids=[3], max_tokens=4)
    _, body = await asyncio.to_thread(service.generate, text_input="x", max_tokens=4)
    assert words in body["error"]
    (event,) = await asyncio.to_thread(
        service.generate_stream, text_input="x", max_tokens=4, stream=True
    )
    assert words in event["error"]
    await service.until(
        lambda: service.metric("card_rejections_total", reason="draining") == 4,
        "all refusals are counted",
    )


async def test_a_draining_service_lets_streams_finish_refuses_others_and_leaves_nothing(
    service: RunningService, right: list[str]
) -> None:
    traces = Traces.of(service)
    assert traces.processes()
    assert len(traces.paths()) == TRACES
    async with open_streams(service) as clients:
        service.process.send_signal(signal.SIGTERM)
        await service.until(lambda: service.state == "draining", "the service drains")
        await refused(service, "UNAVAILABLE: the service is draining")
    assert [client.error for client in clients] == [None] * len(clients)
    assert [client.text for client in clients] == right
    await service.until(lambda: service.process.poll() is not None, "the supervisor ends")
    assert service.process.returncode == 0
    assert traces.processes() == []
    assert traces.paths() == []

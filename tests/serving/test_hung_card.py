"""A Triton whose streams stand still for ever is found out and replaced.

Triton 2.51 locks a stream twice, in one order where a response is written and in the other where a
client has left. A variable of its own makes writing slow, so that the two meet soon.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import grpc
import pytest
from running_service import Refused, RunningService, StartService

SLOW_WRITES_MS = "5"
CLIENTS = 16
SILENCE_S = 4.0
LIMIT_S = 150.0


async def leave(service: RunningService) -> None:
    """Begin a stream and go after its first piece, or when none has come for long."""
    stream = service.stream(
        text_input="x", stream=True, max_tokens=1000, end_id=-1, client_timeout_s=SILENCE_S
    )
    with contextlib.suppress(Refused, grpc.RpcError):
        async for reply in stream:
            if reply.text:
                break
    await stream.aclose()


@pytest.mark.flaky(reruns=2)  # such departures may also end Triton, or meet no writer
async def test_a_server_that_takes_no_response_any_more_is_replaced(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITONSERVER_DELAY_GRPC_RESPONSE", SLOW_WRITES_MS)
    with start_service({}) as service:
        first = service.server_pid

        def is_replaced() -> bool:
            return service.health.get("server_pid", first) not in (first, None)

        limit_s = time.monotonic() + LIMIT_S
        while " event=restarting_server " not in service.log.read_text():
            assert time.monotonic() < limit_s, "no stream stood still, or it was not noticed"
            await asyncio.gather(*(leave(service) for _ in range(CLIENTS)))
        await service.until(is_replaced, "another server runs")
        assert "card has taken no step" in service.log.read_text()
        await asyncio.to_thread(service.await_ready)
        told = f" event=server_recovered server_pid={service.server_pid}"
        await service.until(lambda: told in service.log.read_text(), "the log says that it is back")
        assert await service.text("def f(", max_tokens=8)

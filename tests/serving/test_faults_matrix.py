"""A fixed selection of the matrix of faults; `scripts/faults --every` goes through all of it.

`test_family.py` kills the draft, `test_no_draft.py` stops the target.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import lying_draft
import pytest
from child_process import child, next_line
from fault_cells import Blow, Cell, Moment
from fault_matrix import Ordeal
from running_service import Refused, Reply, StartService
from traces import TRACES, Traces

SELECTION = (
    Cell("draft", Blow.STOP, Moment.MID_STREAM),
    Cell("target", Blow.KILL, Moment.MID_STREAM),
    Cell("target", Blow.PAUSE, Moment.MID_STREAM, pause_s=0.5),
    Cell("preprocessing", Blow.STOP, Moment.IDLE),
    Cell("postprocessing", Blow.KILL, Moment.MID_STREAM),
    Cell("card", Blow.KILL, Moment.MID_STREAM),
    Cell("card", Blow.STOP, Moment.MID_STREAM),
    Cell("server", Blow.KILL, Moment.MID_STREAM),
)

DRAIN_S = 0.2


@pytest.fixture(scope="module")
def ordeal(start_service: StartService) -> Iterator[Ordeal]:
    with start_service({"serving": {"drain_s": DRAIN_S}}) as service:
        ordeal = Ordeal(service)
        asyncio.run(ordeal.prepare())
        yield ordeal


@pytest.mark.parametrize("cell", SELECTION, ids=str)
async def test_no_stream_is_wrong_or_hangs_and_the_service_comes_back(
    ordeal: Ordeal, cell: Cell
) -> None:
    assert await ordeal.endure(cell) == []
    assert len(Traces.of(ordeal.service).paths()) == TRACES


async def test_draft_when_it_lies_changes_no_text_and_kills_no_other_process(
    ordeal: Ordeal,
) -> None:
    """It writes into the pool that the real draft uses too; that one may fall over it."""
    service = ordeal.service
    before = service.health_but_loads
    command = [sys.executable, lying_draft.__file__, str(service.settings_file)]
    with child(*command, str(service.server_pid), "7") as liar:
        assert await asyncio.to_thread(next_line, liar) == b"lies"
        for _ in range(3):
            assert await ordeal.stream_all() == []
        told, _ = await asyncio.to_thread(liar.communicate, b"stop", 10)
    assert int(told) > 1000
    after = service.health_but_loads
    assert after["server_pid"] == before["server_pid"]
    for model in ("card", "target", "preprocessing", "postprocessing"):
        assert after["models"][model] == before["models"][model]


async def test_sigterm_cuts_streams_off_at_the_drain_limit_and_leaves_nothing(
    ordeal: Ordeal,
) -> None:
    service = ordeal.service
    traces = Traces.of(service)
    request: dict[str, Any] = {"max_tokens": 1000, "end_id": -1, "decoding": "autoregressive"}
    long = service.stream(text_input="class", stream=True, **request)
    await anext(long)
    service.process.send_signal(signal.SIGTERM)
    with pytest.raises((Refused, grpc.RpcError)) as cut:
        await _read_on(long)
    assert str(cut.value)
    await service.until(lambda: service.process.poll() is not None, "the supervisor ends")
    assert service.process.returncode == 0
    told = service.log.read_text(encoding="utf-8", errors="replace")
    assert 'event=cut_off open_sessions=1 reason="the drain limit is reached"' in told
    assert traces.processes() == []
    assert traces.paths() == []


async def _read_on(replies: AsyncIterator[Reply]) -> None:
    async for _ in replies:
        pass

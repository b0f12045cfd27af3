"""How services end and begin: struck at the start, robbed, orphaned."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
from running_service import BACK_S, StartService
from traces import Traces

from card.serving.supervision.processes import process_state
from card.serving.supervision.residue import sweep
from card.serving.supervision.watch import ProcessState

PROMPTS = ("def fibonacci(n):", "class Stack:\n", "import os\n", "x")
DRAIN_S = 120.0


async def test_a_server_that_does_not_survive_its_first_starts_gets_another(
    start_service: StartService,
) -> None:
    known = servers()
    with ThreadPoolExecutor(1) as executor:
        striking = executor.submit(strike_the_next_servers, known, signal.SIGKILL, signal.SIGSTOP)
        with start_service({}) as service:
            assert service.server_pid not in striking.result()
            told = service.log.read_text()
            assert "tritonserver ended during its start (killed by SIGKILL)" in told
            assert "tritonserver was stopped during its start" in told
            assert await service.text(PROMPTS[0], max_tokens=8)


def servers() -> set[int]:
    """The servers of all services that these tests started; not what one of them has forked, which
    has its name until it becomes a stub."""
    bearers: dict[int, int] = {}
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name() == "tritonserver":
                bearers[child.pid] = child.ppid()
    return {pid for pid, parent in bearers.items() if parent not in bearers}


def strike_the_next_servers(known: set[int], *blows: signal.Signals) -> set[int]:
    """Each that is started next gets another blow; returns them."""
    struck: set[int] = set()
    for blow in blows:
        limit = time.monotonic() + BACK_S
        while not (new := servers() - known - struck):
            assert time.monotonic() < limit, "no server was started"
        (pid,) = new
        os.kill(pid, blow)
        struck.add(pid)
    return struck


async def test_service_when_its_shared_memory_is_removed_ends_with_the_reason(
    start_service: StartService,
) -> None:
    """As systemd does when the last session of a user ends, unless it is told not to."""
    with start_service({}) as service:
        traces = Traces.of(service)
        for path in service.settings.cache.directory.iterdir():
            shutil.rmtree(path)
        await service.until(lambda: service.process.poll() is not None, "the supervisor ends")
        assert service.process.returncode == 1
        said = service.log.read_text()
        assert "was removed while it served" in said
        assert "Traceback" not in said
        assert traces.processes() == []
        assert traces.paths() == []


async def test_a_killed_supervisor_takes_its_server_along(start_service: StartService) -> None:
    """And what that leaves, a stopped stub included, goes when the next supervisor sweeps."""
    with start_service({}) as service:
        traces = Traces.of(service)
        stopped, server = service.pid_of("draft"), psutil.Process(service.server_pid)
        os.kill(stopped, signal.SIGSTOP)
        service.process.kill()
        service.process.wait()
        await service.until(
            lambda: process_state(server) is ProcessState.GONE, "the server is gone"
        )
        sweep(service.settings.cache.directory)
        assert traces.processes() == []
        assert traces.paths() == []

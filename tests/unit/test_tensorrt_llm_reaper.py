"""Workers never outlive the Triton process that spawned them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

PATIENCE_S = 60.0
PARENT = """
import subprocess, sys
from card.engines.tensorrt_llm.reaper import WorkerReaper
worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
reaper = WorkerReaper()
print(worker.pid, flush=True)
sys.stdin.readline()
reaper.close()
print(worker.wait(), flush=True)
"""


@pytest.fixture
def parent() -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """A process with a worker in a session of its own, and that worker."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    worker = psutil.Process(int(process.stdout.readline()))
    yield process, worker
    process.kill()
    process.communicate()


def gone(worker: psutil.Process) -> bool:
    return not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_a_killed_parent_takes_its_workers_along(
    parent: tuple[subprocess.Popen[str], psutil.Process],
) -> None:
    process, worker = parent
    assert not gone(worker)
    os.kill(process.pid, signal.SIGKILL)
    limit = time.monotonic() + PATIENCE_S
    while not gone(worker):
        assert time.monotonic() < limit, "the worker lives on"
        time.sleep(0.02)


def test_a_clean_end_leaves_none_either(
    parent: tuple[subprocess.Popen[str], psutil.Process],
) -> None:
    process, worker = parent
    output, _ = process.communicate("end\n", timeout=PATIENCE_S)
    assert output.split() == [str(-signal.SIGKILL)]
    assert gone(worker)

"""A worker that ends is noticed; none outlives the Triton process that spawned it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from child_process import child, next_line

from card.engines.tensorrt_llm.workers import reap
from card.processes import started

LIMIT_S = 60.0
PARENT = """
import subprocess, sys, time
from card.engines.tensorrt_llm.workers import Workers
workers = Workers(look_s=0.01)
worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
while worker.pid not in workers._known:
    time.sleep(0.02)
if "loaded" in sys.argv:
    workers.loaded()
print(worker.pid, flush=True)
if sys.stdin.readline().strip() == "count":
    while not workers.notice_lost():
        time.sleep(0.02)
    time.sleep(0.02)
    print(1 + workers.notice_lost(), "loss")
workers.close()
print(worker.wait(), flush=True)
"""


@pytest.fixture(params=[["loaded"], ["while it loads"]], ids=" ".join)
def parent(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]:
    """A process with a worker in a session of its own, and that worker."""
    with child(sys.executable, "-c", PARENT, *request.param) as process:
        yield process, psutil.Process(int(next_line(process)))


def test_loss_is_noticed_once_when_a_worker_ended(
    parent: tuple[subprocess.Popen[bytes], psutil.Process],
) -> None:
    process, worker = parent
    worker.kill()
    output, _ = process.communicate(b"count\n", timeout=LIMIT_S)
    assert output.split() == [b"1", b"loss", b"%d" % -signal.SIGKILL]


def test_worker_is_killed_when_its_parent_was(
    parent: tuple[subprocess.Popen[bytes], psutil.Process],
) -> None:
    process, worker = parent
    os.kill(process.pid, signal.SIGKILL)
    limit = time.monotonic() + LIMIT_S
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < limit, "the worker lives on"
        time.sleep(0.02)


def test_process_is_spared_when_it_only_has_a_workers_id() -> None:
    with child("sleep", "600") as worker:
        reap([f"{worker.pid}:0"])
        assert worker.poll() is None
        reap([f"{worker.pid}:{started(worker.pid)}"])
        assert worker.wait(LIMIT_S) == -signal.SIGKILL

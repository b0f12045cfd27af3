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


def gone(worker: psutil.Process) -> bool:
    return not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_one_that_ended_is_told_once(
    parent: tuple[subprocess.Popen[bytes], psutil.Process],
) -> None:
    process, worker = parent
    worker.kill()
    output, _ = process.communicate(b"count\n", timeout=LIMIT_S)
    assert output.split() == [b"1", b"loss", b"%d" % -signal.SIGKILL]


def test_a_clock_that_was_set_changes_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with child("sleep", "600") as worker:
        name = f"{worker.pid}:{started(worker.pid)}"
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 1.0)
        reap([f"{worker.pid}:0"])  # another process that had its id
        assert worker.poll() is None
        reap([name])
        assert worker.wait(LIMIT_S) == -signal.SIGKILL
    assert started(worker.pid) is None


def test_a_killed_parent_takes_its_workers_along(
    parent: tuple[subprocess.Popen[bytes], psutil.Process],
) -> None:
    process, worker = parent
    assert not gone(worker)
    os.kill(process.pid, signal.SIGKILL)
    limit = time.monotonic() + LIMIT_S
    while not gone(worker):
        assert time.monotonic() < limit, "the worker lives on"
        time.sleep(0.02)


def test_a_clean_end_leaves_none_either(
    parent: tuple[subprocess.Popen[bytes], psutil.Process],
) -> None:
    process, worker = parent
    output, _ = process.communicate(b"end\n", timeout=LIMIT_S)
    assert output.split() == [b"%d" % -signal.SIGKILL]
    assert gone(worker)

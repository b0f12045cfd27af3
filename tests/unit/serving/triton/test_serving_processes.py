"""Processes of engines: those that ended are counted, and those that run let others in."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from child_process import child
from serving_double import make_pool

from card.cache import EngineState, Pool
from card.serving.log import open_log
from card.serving.triton.attach import Losses, is_dead
from card.serving.triton.denials import QUIET_S, Denials
from card.serving.triton.time_slice import ENGINE_SLICE_NS, slice_ns, take_long_slices

LIVING = "import sys; sys.stdin.read()"


def announce(pool: Pool, pid: int, state: EngineState) -> None:
    """As an engine process does by its first heartbeat."""
    pool.header["target_pid"] = pid
    pool.header["target_state"] = state


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_each_ended_process_counts_once(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    losses = Losses(pool, "target")
    assert losses.count() == 0, "nobody was ever there"
    with child(sys.executable, "-c", LIVING) as first:
        announce(pool, first.pid, EngineState.ATTACHED)
        assert losses.count() == 0
        end(first)
        assert [losses.count(), losses.count()] == [1, 1]
    with child(sys.executable, "-c", LIVING) as second:
        announce(pool, second.pid, EngineState.LOADED)
        assert is_dead(pool, "target"), "not attached yet"
        assert losses.count() == 1, "but it lives"
        end(second)
        assert losses.count() == 2, "it was never seen attached"
    pool.close()


def test_a_process_whose_successor_is_there_already_has_ended(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    losses = Losses(pool, "target")
    with child(sys.executable, "-c", LIVING) as first:
        announce(pool, first.pid, EngineState.ATTACHED)
        assert losses.count() == 0
        announce(pool, os.getpid(), EngineState.LOADED)
        assert [losses.count(), losses.count()] == [1, 1]
    pool.close()


def test_many_denials_are_one_line_now_and_one_later(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 100.0
    denials = Denials(open_log("target", "text"), lambda: now_s)
    for _ in range(500):
        denials.count()
    (line,) = capsys.readouterr().err.splitlines()
    assert "level=warning component=target event=attach_refused requests=1" in line
    now_s += QUIET_S
    denials.count()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("requests=500")


def in_a_thread(work: Callable[[], int]) -> int:
    """What `work` returns in a thread of its own, which ends with what it changed."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(work).result()


def kernel_has_slices() -> bool:
    """Linux has them since 6.12, and a sandbox may not let anybody see them."""
    try:
        return slice_ns() > 0
    except OSError:
        return False


@pytest.mark.skipif(not kernel_has_slices(), reason="this kernel keeps no slice of a thread's own")
def test_a_thread_and_those_that_it_starts_take_long_slices() -> None:
    before = slice_ns()

    def slices() -> int:
        take_long_slices()
        assert slice_ns() == ENGINE_SLICE_NS
        return in_a_thread(slice_ns)

    assert in_a_thread(slices) == ENGINE_SLICE_NS != before
    assert slice_ns() == before


def test_policy_and_niceness_stay() -> None:
    def niceness() -> int:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, before + 1)
        take_long_slices()
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
        return os.getpriority(os.PRIO_PROCESS, thread)

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert in_a_thread(niceness) == before + 1

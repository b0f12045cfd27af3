"""Engines ask for long slices, so that whatever wakes up beside them is let in at once."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from card.serving.triton import time_slice
from card.serving.triton.time_slice import ENGINE_SLICE_NS, slice_ns, take_long_slices


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


def test_another_policy_is_the_operators_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    def policy() -> int:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        take_long_slices()
        return os.sched_getscheduler(0)

    called: list[int] = []
    call = time_slice._call

    def calling(which: int, *rest: Any) -> object:
        called.append(which)
        return call(which, *rest)

    monkeypatch.setattr(time_slice, "_call", calling)
    assert in_a_thread(policy) == os.SCHED_BATCH
    assert called == [time_slice._GET], "it is read and not set"


def test_where_the_call_is_not_there_an_engine_loads_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "abacus")
    with caplog.at_level("INFO"):
        take_long_slices()
    assert "abacus" in caplog.text

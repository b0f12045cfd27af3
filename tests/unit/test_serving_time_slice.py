"""Engines ask for long slices, so that whatever wakes up beside them is let in at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from card.serving import time_slice
from card.serving.time_slice import ENGINE_SLICE_NS, slice_ns, take_long_slices


def in_a_thread(work: Callable[[], int]) -> int:
    """What `work` returns in a thread of its own, which ends with what it changed."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(work).result()


def kernel_has_slices() -> bool:
    """Whether the kernel keeps a slice that a thread asks for: Linux 6.12 does."""
    release = os.uname().release.split("-")[0].split(".")
    return (int(release[0]), int(release[1])) >= (6, 12)


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
        take_long_slices()
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert in_a_thread(niceness) == os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_another_policy_is_the_operators_choice() -> None:
    def policy() -> int:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        take_long_slices()
        return os.sched_getscheduler(0)

    assert in_a_thread(policy) == os.SCHED_BATCH


def test_where_the_call_is_not_there_an_engine_loads_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(time_slice.platform, "machine", lambda: "abacus")
    with caplog.at_level("INFO"):
        take_long_slices()
    assert "abacus" in caplog.text

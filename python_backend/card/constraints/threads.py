"""The threads in which guides compute, beside a loop that must not wait for them.

llguidance lets other threads run while it computes a mask. A step of an ordinary guide takes some
microseconds; a step of an ambiguous grammar takes up to seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

SLOW_S = 0.005
"""A guide is slow from this processor time of a step on; a loop waits this long for a step of
another guide. An ordinary step takes 0.1 ms. The time decides in which thread a guide computes and
whether its text gets candidates, and never changes the text."""

_QUICK_THREADS = 8
"""Steps that may be slow at the same time before an ordinary guide waits for one of them."""
_REST_OF_SLOW = 4.0


class RestingThread:
    """One thread that works in order. After each piece it sleeps `rest` times as long as the piece
    took, which leaves a share of the processor to others."""

    def __init__(self, name: str, rest: float) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._rest = rest
        self._rests_until = 0.0

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        return self._thread.submit(self._rested, work)

    def _rested(self, work: Callable[[], Result]) -> Result:
        started = time.monotonic()
        if started < self._rests_until:
            time.sleep(self._rests_until - started)
            started = time.monotonic()
        try:
            return work()
        finally:
            ended = time.monotonic()
            self._rests_until = ended + self._rest * (ended - started)


class GuideThreads:
    """Several threads for ordinary guides; one resting thread for all slow guides."""

    def __init__(self) -> None:
        self._quick = ThreadPoolExecutor(_QUICK_THREADS, thread_name_prefix="guides")
        self._slow = RestingThread("slow-guides", _REST_OF_SLOW)

    def submit(self, work: Callable[[], Result], *, slow: bool) -> Future[Result]:
        return self._slow.submit(work) if slow else self._quick.submit(work)

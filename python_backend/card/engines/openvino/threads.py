"""Limits the threads of a pass, within the number that its graph was compiled for.

So one copy of the weights serves passes on one thread, beside the draft, and on every core. A graph
divides its work into a fixed number of equal parts, set at compilation. oneTBB assigns the parts to
threads, and this module limits their number. The parts do not depend on the threads, so the bits
are the same.

While OpenVINO's own oneTBB may use only one thread, its idle threads keep other cores busy looking
for work; version 2022.0 repaired that. So this module first loads the oneTBB of the package `tbb`,
which libraries that are loaded later then use.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import threading
import time
from collections.abc import Callable
from functools import cache

_SONAME = "libtbb.so.12"
_REPAIRED = 12140
"""Interface version of oneTBB 2022.0."""

_MAX_ALLOWED_PARALLELISM = 0

MOST_PASSES_WITH_FEW = 256
"""Most consecutive passes with few threads. A pass of a graph for two threads (8 layers, paged
attention) leaves 16 to 30 KiB of notes. oneTBB reuses their memory once they are taken, but never
frees it."""
MOST_PASSES_WITH_ALL = 32
_TOOK_PART = 0.05
"""Least share of a pass's time that another thread computes if it took part. On busy cores a thread
may wake up only after the pass."""


class _Control(ctypes.Structure):
    """A `tbb::global_control`. The smallest value of all existing ones is in effect."""

    _fields_ = (
        ("value", ctypes.c_size_t),
        ("reserved", ctypes.c_ssize_t),
        ("parameter", ctypes.c_int),
    )


class ThreadLimit:
    """Limits the computing threads of this process, for all graphs together."""

    def __init__(self, tbb: ctypes.CDLL) -> None:
        # Mangled names, because only the C++ header exposes the class.
        self._create = tbb["_ZN3tbb6detail2r16createERNS0_2d114global_controlE"]
        self._destroy = tbb["_ZN3tbb6detail2r17destroyERNS0_2d114global_controlE"]
        self._control: _Control | None = None
        self._changing = threading.Lock()

    def set(self, threads: int) -> None:
        """Set the number of threads from the next pass on; 0: no limit."""
        with self._changing:
            self._set(threads)

    def _set(self, threads: int) -> None:
        before = self._control
        if threads == (before.value if before else 0):
            return
        self._control = None
        if threads:
            self._control = _Control(threads, 0, _MAX_ALLOWED_PARALLELISM)
            self._create(ctypes.byref(self._control))
        if before:
            self._destroy(ctypes.byref(before))


class PassThreads:
    """Computes passes of one graph on few of the threads that it was compiled for, or on all.

    oneTBB addresses parts of a pass to threads, with notes that only the addressed thread removes.
    A thread that may not compute removes none, so a target beside a busy draft would grow by
    megabytes a second. So after many passes with few threads, some passes use all threads, until
    every thread took part.

    limit   None: threads are not limited
    most    number of threads that the graph was compiled for
    """

    def __init__(
        self,
        limit: ThreadLimit | None,
        most: int,
        clock: Callable[[], float] = time.perf_counter,
        others_s: Callable[[], float] = lambda: time.process_time() - time.thread_time(),
    ) -> None:
        """`others_s` returns the processor time of this process's other threads, in seconds."""
        self._clock, self._others_s = clock, others_s
        self._limit = limit
        self.most = most
        self._passes_since_all = 0

    def compute(self, threads: int, infer: Callable[[], object], *, exactly: bool) -> None:
        """Call `infer` with `threads` threads (0: all). Unless `exactly` is set, some calls use all
        threads."""
        if self._limit is None:
            infer()
            return
        self._passes_since_all += 1
        is_time = self._passes_since_all > MOST_PASSES_WITH_FEW and not exactly
        if self.most == 1 or (0 < threads < self.most and not is_time):
            self._limit.set(threads)
            infer()
            return
        self._limit.set(self.most if threads else 0)
        most = MOST_PASSES_WITH_FEW + MOST_PASSES_WITH_ALL
        if self._all_take_part(infer) or self._passes_since_all >= most:
            self._passes_since_all = 0

    def _all_take_part(self, infer: Callable[[], object]) -> bool:
        """Call `infer`; whether every other thread computed meanwhile."""
        began_s, before_s = self._clock(), self._others_s()
        infer()
        worked_s = self._others_s() - before_s
        # One thread that did nothing leaves less than this, whatever the others did.
        return worked_s > (self.most - 2 + _TOOK_PART) * (self._clock() - began_s)


def load_tbb() -> None:
    """Load the package's oneTBB; before anybody imports OpenVINO. Where it is not installed, or not
    whole, OpenVINO takes its own, and `thread_limit` says so."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, OSError):
        for file in importlib.metadata.files("tbb") or ():
            if file.name == _SONAME:
                ctypes.CDLL(str(file.locate()))


@cache
def thread_limit() -> ThreadLimit | None:
    """That of the oneTBB which OpenVINO has; None where its threads would not rest."""
    try:
        tbb = ctypes.CDLL(_SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        repaired = tbb.TBB_runtime_interface_version() >= _REPAIRED
        return ThreadLimit(tbb) if repaired else None
    except (OSError, AttributeError):  # none is loaded, or one that is older still
        return None

"""How many threads compute a pass, of those that its graph was compiled for.

So one copy of the weights serves passes on one thread, beside the draft, and on every core. A graph
hands out as many equal parts of its work as it was compiled for; oneTBB, which lets threads take
them, is told how many may. The parts are the same whoever takes them, and so are the bits.

OpenVINO brings a oneTBB of its own whose threads, while only one may compute, keep the others'
cores busy looking for work; that was repaired in 2022.0. So that of the package `tbb` is loaded
first: what is loaded later and wants a oneTBB gets this one.
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
"""A pass of a graph for two threads (8 layers, paged attention) leaves 16
to 30 KiB of notes. What they took is for other notes once they are taken away, but never given
back: a process holds the most that ever were there at once."""
MOST_PASSES_WITH_ALL = 32
_TOOK_PART = 0.05
"""Share of a pass's time that another thread computes if it takes part; less if it only wakes up
when the pass is over, because every core is busy."""


class _Control(ctypes.Structure):
    """A `tbb::global_control`. The least value of those that exist counts."""

    _fields_ = (
        ("value", ctypes.c_size_t),
        ("reserved", ctypes.c_ssize_t),
        ("parameter", ctypes.c_int),
    )


class ThreadLimit:
    """How many threads of this process may compute, all graphs together."""

    def __init__(self, tbb: ctypes.CDLL) -> None:
        # As the compiler names them: the class has no other way in but its header.
        self._create = tbb["_ZN3tbb6detail2r16createERNS0_2d114global_controlE"]
        self._destroy = tbb["_ZN3tbb6detail2r17destroyERNS0_2d114global_controlE"]
        self._control: _Control | None = None
        self._changing = threading.Lock()

    def set(self, threads: int) -> None:
        """From the next pass on so many, 0: as many as there are."""
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

    oneTBB addresses parts of a pass to threads, with notes that only the addressee takes away. One
    that may not compute takes none: left alone, a target beside a busy draft grows by some
    megabytes a second. So after many passes with few threads some have all, until all took part.

    limit   None: threads are as they are
    most    threads that the graph was compiled for
    """

    def __init__(
        self,
        limit: ThreadLimit | None,
        most: int,
        clock: Callable[[], float] = time.perf_counter,
        others_s: Callable[[], float] = lambda: time.process_time() - time.thread_time(),
    ) -> None:
        """`others_s` is what this process's other threads have computed."""
        self._clock, self._others_s = clock, others_s
        self._limit = limit
        self.most = most
        self._passes_since_all = 0

    def compute(self, threads: int, infer: Callable[[], object], *, exactly: bool) -> None:
        """Call `infer` with so many threads (0: all) or, unless `exactly` is wanted, with all if it
        is time for that."""
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

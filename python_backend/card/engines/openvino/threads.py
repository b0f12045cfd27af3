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
from functools import cache

_SONAME = "libtbb.so.12"
_REPAIRED = 12140
"""Interface version of oneTBB 2022.0."""

_MAX_ALLOWED_PARALLELISM = 0


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

    def set(self, threads: int) -> None:
        """From the next pass on so many, 0: as many as there are."""
        before = self._control
        if threads == (before.value if before else 0):
            return
        self._control = None
        if threads:
            self._control = _Control(threads, 0, _MAX_ALLOWED_PARALLELISM)
            self._create(ctypes.byref(self._control))
        if before:
            self._destroy(ctypes.byref(before))


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

"""Returns a process's freed memory to the kernel, now and then.

Passes of changing sizes leave holes in the C library's memory, which the library does not return by
itself: under mixed load an engine grew by half a mebibyte a minute and more for 15 minutes.
Returning them takes two or three milliseconds, during which allocations wait.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

PERIOD_S = 5.0


class SpareMemory:
    """The spare memory of this process; does nothing if the C library lacks `malloc_trim`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_s = clock() + PERIOD_S
        self._trim: Callable[[int], int] = getattr(ctypes.CDLL(None), "malloc_trim", _keep)

    def give_back(self) -> None:
        """Return freed memory if it is due."""
        if self._clock() >= self._due_s:
            self._trim(0)
            self._due_s = self._clock() + PERIOD_S


def _keep(_: int) -> int:
    return 0

"""Gives what a process has freed back to the kernel, now and then.

Passes of ever other sizes leave holes in the C library's memory, which it keeps by itself: under
mixed load an engine grew by half a mebibyte a minute and more for a quarter of an hour. To give
them back takes two or three milliseconds, in which whoever wants memory waits.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

PERIOD_S = 30.0


class SpareMemory:
    """That of this process; nothing happens where the C library knows no `malloc_trim`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_s = clock() + PERIOD_S
        self._trim: Callable[[int], int] = getattr(ctypes.CDLL(None), "malloc_trim", _keep)

    def give_back(self) -> None:
        """If it is time for that."""
        if self._clock() >= self._due_s:
            self._trim(0)
            self._due_s = self._clock() + PERIOD_S


def _keep(_: int) -> int:
    return 0

"""Ties a child process to this one: the kernel signals it when its parent dies."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from signal import Signals

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def tethered(signal: Signals) -> Callable[[], None]:
    """A `preexec_fn` after which the child gets `signal` when this process dies, however it dies.

    Start the child from the thread that lives longest: the kernel takes the end of the starting
    thread for the death of the parent.
    """
    parent = os.getpid()

    def tie() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal)
        if os.getppid() != parent:  # it died between fork and here
            os._exit(1)

    return tie

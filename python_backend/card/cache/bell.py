"""Wakes processes that wait for another one to do something in the pool.

A futex on a word of the pool: who waits says what the word was when it last looked, and the kernel
lets it sleep only while that still holds, so no ring is ever missed between a look and a wait.
"""

from __future__ import annotations

import ctypes
import errno
import time
from collections.abc import Callable
from typing import Any

_SYS_FUTEX = 202  # on x86-64, the only machine that a pool works on
_FUTEX_WAIT = 0
_FUTEX_WAKE = 1
_EVERYBODY = 2**31 - 1
WITHOUT_FUTEX_S = 0.004
"""How long nobody looks where the kernel (or a sandbox) has no futex for us."""

_libc = ctypes.CDLL(None, use_errno=True)  # its calls let other threads run meanwhile


Futex = Callable[[ctypes.c_void_p, int, int, Any], int]


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Bell:
    """One word of the pool's header.

    Of two processes that ring in the same instant (`card` and the target, TensorRT-LLM's worker and
    its Triton process) one may not be counted; whoever waits looks again after a while in any case.

    word   one of int64, in the shared mapping; the kernel looks at its lower half
    futex  the kernel's call
    """

    def __init__(self, word: memoryview[Any], futex: Futex | None = None) -> None:
        self._word = word
        self._futex = futex or _futex
        self._address = ctypes.c_void_p(ctypes.addressof(ctypes.c_int64.from_buffer(word)))

    @property
    def rings(self) -> int:
        """How often it rang; read before looking at what it tells of."""
        return int(self._word[0])

    def ring(self) -> None:
        """Wake everybody who waits."""
        self._word[0] += 1
        self._futex(self._address, _FUTEX_WAKE, _EVERYBODY, None)

    def wait(self, rings: int, timeout_s: float) -> None:
        """Sleep until it has rung more often than `rings` times, or for `timeout_s`."""
        whole = int(timeout_s)
        span = _Timespec(whole, int((timeout_s - whole) * 1e9))
        error = self._futex(self._address, _FUTEX_WAIT, rings & 0xFFFFFFFF, ctypes.byref(span))
        if error in (errno.ENOSYS, errno.EPERM):
            time.sleep(min(timeout_s, WITHOUT_FUTEX_S))


def _futex(address: ctypes.c_void_p, operation: int, value: int, timeout: Any) -> int:
    """Returns the error's number, 0 if there was none."""
    failed = _libc.syscall(
        ctypes.c_long(_SYS_FUTEX), address, operation, ctypes.c_uint(value), timeout, None, 0
    )
    return ctypes.get_errno() if failed == -1 else 0

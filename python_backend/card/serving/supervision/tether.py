"""Ties a child process to this one: the kernel signals it when its parent dies.

The tie is made by a program of its own that then becomes the child's. `preexec_fn` would make it
between fork and exec, and a fork runs gRPC's handlers: where this process holds connections they
abort the child now and then.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_NOT_STARTED = 127  # a shell's exit code for a program that it cannot start
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def tethered(blow: signal.Signals, command: Sequence[str | Path]) -> list[str]:
    """`command` for a child of this process that gets `blow` when this one dies, however it dies.

    Start the child from the thread that lives longest: the kernel takes the end of the starting
    thread for the death of the parent. A program that cannot be started is one line on standard
    error and exit code 127.
    """
    words = [str(word) for word in command]
    # Isolated and without site-packages it is there in 15 ms.
    python = [sys.executable, "-I", "-S", __file__]
    return [*python, str(int(blow)), str(os.getpid()), *words]


def _tie_and_become(blow: int, parent: int, words: list[str]) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, blow)
    if os.getppid() != parent:  # it died before the tie was made
        sys.exit(1)
    for number in _IGNORED_BY_PYTHON:  # exec would hand that on
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        print(f"{words[0]} cannot be started: {error.strerror}", file=sys.stderr)
        sys.exit(_NOT_STARTED)


if __name__ == "__main__":
    _tie_and_become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

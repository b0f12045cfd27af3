"""Starts a child process that gets a signal when its parent dies.

A program of its own asks the kernel for the signal and then becomes the child. `preexec_fn` would
ask between fork and exec, and a fork runs gRPC's handlers, which abort the child now and then.
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


def bound(
    on_parent_exit: signal.Signals, command: Sequence[str | Path], python: str = sys.executable
) -> list[str]:
    """`command` for a child of this process that gets this signal when this process dies.

    Start the child from the thread that lives longest: the kernel takes the end of the starting
    thread for the death of the parent. A program that cannot be started is one line on standard
    error and exit code 127.

    python  the interpreter; inside Triton's stub `sys.executable` is none
    """
    # Isolated and without site-packages Python is there in 15 ms.
    program = [python, "-I", "-S", __file__]
    return [*program, str(int(on_parent_exit)), str(os.getpid()), *map(str, command)]


def signal_on_parent_exit(number: int, parent: int) -> None:
    """Let the kernel send this process a signal when `parent` dies; exit if it is dead already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def _become(words: list[str]) -> None:
    for number in _IGNORED_BY_PYTHON:  # exec would hand that on
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        print(f"{words[0]} cannot be started: {error.strerror}", file=sys.stderr)
        sys.exit(_NOT_STARTED)


if __name__ == "__main__":
    signal_on_parent_exit(int(sys.argv[1]), int(sys.argv[2]))
    _become(sys.argv[3:])

"""Requests to stop, as signals make them.

A signal handler interrupts whatever the main thread does, an earlier handler included. It must
take no lock that the interrupted code may hold: `threading.Event.set` does, and waits for ever if
that was in `wait` or `set` itself. So requests go through a pipe, which needs none.
"""

from __future__ import annotations

import contextlib
import os
import select

_AT_ONCE = 4096
"""Requests taken out of the pipe at a time."""


class StopRequests:
    """Made from anywhere by `ask`, counted by the one thread that calls `wait_for`.

    The pipe stays open as long as the process: a handler may still write when all else is closed.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)

    def ask(self) -> None:
        """Ask once more; safe in a signal handler and in any thread."""
        with contextlib.suppress(BlockingIOError):  # it is full of requests
            os.write(self._writer, b"\0")

    def wait_for(self, number: int, within_s: float) -> bool:
        """Wait until it has been asked so often, for that many seconds at most; whether it has."""
        if self._asked < number and self._poll.poll(within_s * 1e3):
            self._asked += len(os.read(self._reader, _AT_ONCE))
        return self._asked >= number

"""Logs refused attach requests."""

from __future__ import annotations

import time
from collections.abc import Callable

from card.serving.log import EventLog

QUIET_S = 10.0
"""Least seconds between two lines, so that a client that tries keys cannot fill the log."""


class Denials:
    """Logs a line for the first refusal; later lines, at least `QUIET_S` apart, count the
    refusals since the line before."""

    def __init__(self, log: EventLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._untold = 0
        self._silent_until_s = -float("inf")

    def count(self) -> None:
        """Count one refusal."""
        self._untold += 1
        now_s = self._clock()
        if now_s >= self._silent_until_s:
            self._log.warn("attach_refused", requests=self._untold)
            self._untold = 0
            self._silent_until_s = now_s + QUIET_S

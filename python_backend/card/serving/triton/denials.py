"""What an operator hears of attach requests that were refused."""

from __future__ import annotations

import time
from collections.abc import Callable

from card.serving.log import EventLog

QUIET_S = 10.0
"""At most one line in so long: whoever tries keys must not fill the log."""


class Denials:
    """One line for the first; the next, at the earliest a while later, counts those in between."""

    def __init__(self, log: EventLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._untold = 0
        self._silent_until_s = -float("inf")

    def count(self) -> None:
        """One more was refused."""
        self._untold += 1
        now_s = self._clock()
        if now_s >= self._silent_until_s:
            self._log.warn("attach_refused", requests=self._untold)
            self._untold = 0
            self._silent_until_s = now_s + QUIET_S

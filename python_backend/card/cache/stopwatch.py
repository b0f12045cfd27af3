"""How long a session ran and how long it waited, kept in its slot."""

from __future__ import annotations

import time

from card.cache.record import Record


class Stopwatch:
    """Divides a session's time between two counters of its slot, in nanoseconds."""

    def __init__(self, record: Record, running: str, waiting: str) -> None:
        self._record = record
        self._counters = (waiting, running)
        self.restart()

    def restart(self) -> None:
        """Another session: the time until its first look is nobody's."""
        self._spent_ns = [int(self._record[name]) for name in self._counters]
        self._looked_ns: int | None = None
        self._runs = False

    def look(self, runs: bool) -> None:
        """The time since the last look counts for what was seen then."""
        now_ns = time.perf_counter_ns()
        if self._looked_ns is not None:
            self._spent_ns[self._runs] += now_ns - self._looked_ns
            self._record[self._counters[self._runs]] = self._spent_ns[self._runs]
        self._looked_ns, self._runs = now_ns, runs

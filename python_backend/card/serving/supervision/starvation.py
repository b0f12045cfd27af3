"""Which part of a process's silence is due to the machine.

A process that wants to run and gets no processor is starved, not hung. The kernel tells it for each
thread: `/proc/PID/task/TID/schedstat` holds the nanoseconds that the thread ran and those that it
waited for a processor. A wait is added when it ends; until then the thread is ready and does not
run. All threads count, because the one that beats may wait for another, as for the interpreter's
lock. A process that is stopped, or whose threads wait for each other, waits for no processor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

UNNOTED_S = 0.3
"""A silence is looked into when it is longer, as three heartbeats are: reading all threads of a
process takes a millisecond."""
MOST_TIMES = 10
"""A process is left alone for so many times the silence that it is allowed. One that spins for ever
waits for processors too where others want them, and must be found there as well."""


@dataclass(frozen=True, slots=True)
class Thread:
    """What the kernel says of one thread.

    ran_ns     how long it has run
    waited_ns  how long it waited for a processor, without a wait that lasts
    is_ready   whether it runs now or waits for a processor
    """

    ran_ns: int
    waited_ns: int
    is_ready: bool


def threads_of(pid: int) -> dict[int, Thread]:
    """By their ids; empty where the kernel does not tell, or the process is gone."""
    threads: dict[int, Thread] = {}
    with suppress(OSError):
        for task in list(Path(f"/proc/{pid}/task").iterdir()):
            with suppress(OSError):  # this one has ended
                ran_ns, waited_ns, _ = map(int, (task / "schedstat").read_bytes().split())
                state = (task / "stat").read_bytes().rpartition(b")")[2].split()[0]
                if ran_ns:  # a kernel that does not count says 0
                    threads[int(task.name)] = Thread(ran_ns, waited_ns, state == b"R")
    return threads


class Starvation:
    """Follows the silences of a process, look after look, and of its successors."""

    def __init__(
        self,
        threads: Callable[[int], Mapping[int, Thread]] = threads_of,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threads = threads
        self._clock = clock
        self._silence_s = 0.0
        self._seen: Mapping[int, Thread] | None = None
        self._seen_s = 0.0
        self._starved_s = 0.0

    def of(self, pid: int, silence_s: float) -> float:
        """Seconds of the silence that `pid` is in which do not count against it."""
        if silence_s < self._silence_s:  # it has beaten meanwhile
            self._seen, self._starved_s = None, 0.0
        self._silence_s = silence_s
        if silence_s <= UNNOTED_S:
            return 0.0
        seen, now_s = self._threads(pid), self._clock()
        if self._seen is not None:
            past_s = now_s - self._seen_s
            longest_s = max((_waited_s(self._seen, seen, tid, past_s) for tid in seen), default=0.0)
            self._starved_s += min(longest_s, past_s)
        elif seen:  # whoever looks late cannot tell why it has been silent until now
            self._starved_s = silence_s - UNNOTED_S
        self._seen, self._seen_s = seen, now_s
        return min(self._starved_s, silence_s * (1 - 1 / MOST_TIMES))


def _waited_s(
    before: Mapping[int, Thread], now: Mapping[int, Thread], tid: int, past_s: float
) -> float:
    """How long a thread waited for a processor between two looks, `past_s` apart."""
    old, new = before.get(tid), now[tid]
    if old is None:
        return 0.0
    waits_on = old.is_ready and new.is_ready and old.ran_ns == new.ran_ns
    return past_s if waits_on else (new.waited_ns - old.waited_ns) / 1e9

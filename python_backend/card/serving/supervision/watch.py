"""Judges observations of the processes: which model or server is lost, and why.

A silence does not count while the process waited for a processor. This module touches no process;
only `threads_of` reads the kernel's data of one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from card.serving.supervision.states import ANSWERS_CLIENTS, CARD

MOST_STOPPED_S = 0.3
"""Longest stop of a model that answers clients. Triton gives up on a process that does not answer
for a second and reuses the memory of its requests. If the process then continues, one client's text
ends up in another client's stream. So the process must be killed before."""
BLINK_S = 0.5
"""After a longer pause between two looks the supervisor, and perhaps every process, did not run."""
SERVER_SILENCE_S = 15.0
"""A server that answers no health request for longer counts as hanging."""
CLOSED_S = 1.0
"""A server that refuses connections for longer is ending, for example after a foreign SIGTERM. Open
streams get no answer meanwhile."""
CARD_SILENCE_S = 15.0
"""A `card` that is silent for longer waits for Triton to accept a response. Only a restart of the
server helps."""
UNNOTED_S = 0.3
"""Shorter silences are not examined, because reading all threads of a process takes 1 ms."""
MOST_TIMES = 10
"""Waiting for a processor excuses at most this multiple of the allowed silence: on a busy machine a
process that spins forever waits for processors too."""


class ProcessState(Enum):
    """The kernel's state of a process; a zombie counts as gone."""

    RUNNING = "running"
    STOPPED = "stopped"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Sight:
    """One observation of a model's process.

    silence_s  seconds since its last heartbeat; 0 for a model without heartbeats so far
    starved_s  part of the silence in which the process waited for a processor
    attached   whether the process takes part in serving; always true except for engines
    streams    open streams that are lost with it
    """

    process: ProcessState
    silence_s: float = 0.0
    starved_s: float = 0.0
    attached: bool = True
    streams: int = 0

    @property
    def unexplained_s(self) -> float:
        """The part of the silence that counts."""
        return self.silence_s - self.starved_s

    def condition(self, longest_silence_s: float) -> str:
        """`well`, or in one word what is wrong."""
        if self.process is not ProcessState.RUNNING:
            return str(self.process.value)
        if not self.attached:
            return "detached"
        return "silent" if self.unexplained_s > longest_silence_s else "well"


@dataclass(frozen=True, slots=True)
class ServerSight:
    """One observation of the server: seconds since its last answer, and whether it listens."""

    process: ProcessState
    silence_s: float = 0.0
    listens: bool = True


@dataclass(slots=True)
class Lasting:
    """Measures how long conditions have held without a break."""

    _since_s: dict[str, float] = field(default_factory=dict)

    def seconds(self, condition: str, holds: bool, now_s: float) -> float:
        if not holds:
            self._since_s.pop(condition, None)
            return 0.0
        return now_s - self._since_s.setdefault(condition, now_s)

    def forget(self, prefix: str = "") -> None:
        """Reset all conditions with this prefix."""
        for condition in [name for name in self._since_s if name.startswith(prefix)]:
            del self._since_s[condition]


class Watch:
    """Judges repeated observations. Times are seconds on one monotonic clock."""

    def __init__(self, *, engine_timeout_s: float, load_timeout_s: float) -> None:
        self._engine_timeout_s = engine_timeout_s
        self._load_timeout_s = load_timeout_s
        self._looked_s = self._lenient_until_s = -math.inf
        self._lasting = Lasting()

    def look(self, now_s: float) -> None:
        """Begin an observation. After a pause of the whole machine or container, silences start
        again at 0; a process that is gone is still gone."""
        if now_s - self._looked_s > BLINK_S:
            self._lenient_until_s = now_s + self._engine_timeout_s
            self._lasting.forget()
        self._looked_s = now_s

    def forget(self, model: str) -> None:
        """Reset the conditions of this model for its new process."""
        self._lasting.forget(f"{model} ")

    def model(self, model: str, sight: Sight) -> str | None:
        """Why this model is lost; None: it is not lost."""
        if sight.process is ProcessState.GONE:
            return "its process is gone"
        most_s = self._engine_timeout_s
        stopped_s = self._seconds(f"{model} stopped", sight.process is ProcessState.STOPPED)
        if stopped_s > (min(most_s, MOST_STOPPED_S) if model in ANSWERS_CLIENTS else most_s):
            return f"its process has been stopped for {stopped_s:.1f} s"
        if model != CARD and sight.unexplained_s > most_s and not self._is_lenient:
            starved = f", starved for {sight.starved_s:.1f} s of them" if sight.starved_s else ""
            return f"no heartbeat for {sight.silence_s:.1f} s{starved}"
        detached_s = self._seconds(f"{model} detached", not sight.attached)
        return f"not attached for {detached_s:.0f} s" if detached_s > self._load_timeout_s else None

    def server(self, server: ServerSight, card: Sight | None) -> str | None:
        """Why the server is lost; None: it is not lost. `card` is None during its reload."""
        if server.process is ProcessState.GONE:
            return "the server's process is gone"
        stopped_s = self._seconds("stopped", server.process is ProcessState.STOPPED)
        if stopped_s > self._engine_timeout_s:
            return f"the server's process has been stopped for {stopped_s:.1f} s"
        closed_s = self._seconds("closed", not server.listens)
        if closed_s > CLOSED_S:
            return f"the server has taken no connection for {closed_s:.1f} s: it is ending"
        if self._is_lenient:
            return None
        if server.silence_s > SERVER_SILENCE_S:
            return f"the server has not answered for {server.silence_s:.1f} s"
        if card is not None and card.silence_s > CARD_SILENCE_S:
            return f"card has taken no step for {card.silence_s:.1f} s"
        return None

    @property
    def _is_lenient(self) -> bool:
        return self._looked_s < self._lenient_until_s

    def _seconds(self, condition: str, holds: bool) -> float:
        return self._lasting.seconds(condition, holds, self._looked_s)


@dataclass(frozen=True, slots=True)
class Thread:
    """The kernel's data of one thread: nanoseconds that it ran, nanoseconds of its finished waits
    for a processor, and whether it now runs or waits for a processor."""

    ran_ns: int
    waited_ns: int
    is_ready: bool


def threads_of(pid: int) -> dict[int, Thread]:
    """Threads by id; empty if the kernel provides no data, or the process is gone."""
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
    """Measures the part of a process's silences in which it waited for a processor.

    The kernel adds a wait when it ends; until then the thread is ready and does not run. All
    threads count, because the beating thread may wait for another one, for example for the
    interpreter's lock.
    """

    def __init__(
        self,
        threads: Callable[[int], Mapping[int, Thread]] = threads_of,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threads = threads
        self._clock = clock
        self._silence_s = self._seen_s = self._starved_s = 0.0
        self._seen: Mapping[int, Thread] | None = None

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
            waits_s = (_waited_s(self._seen.get(tid), seen[tid], past_s) for tid in seen)
            self._starved_s += min(max(waits_s, default=0.0), past_s)
        elif seen:  # a late first look cannot tell why the process was silent until now
            self._starved_s = silence_s - UNNOTED_S
        self._seen, self._seen_s = seen, now_s
        return min(self._starved_s, silence_s * (1 - 1 / MOST_TIMES))


def _waited_s(old: Thread | None, new: Thread, past_s: float) -> float:
    """How long a thread waited for a processor between two looks, `past_s` apart."""
    if old is None:
        return 0.0
    waits_on = old.is_ready and new.is_ready and old.ran_ns == new.ran_ns
    return past_s if waits_on else (new.waited_ns - old.waited_ns) / 1e9

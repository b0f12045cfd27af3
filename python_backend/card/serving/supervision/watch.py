"""Judges what one look at the processes shows: which model or server is lost, and why.

A silence counts only as far as the process did not wait for a processor. Nothing here touches a
process, except that `threads_of` reads what the kernel says of one.
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
"""How long a model that answers clients may be stopped. Triton gives up on a process that does not
answer for a second and uses the memory of its requests for others. If the process goes on, the end
of one client's text comes out in the stream of another. So the process must be gone by then."""
BLINK_S = 0.5
"""A longer pause between two looks: the supervisor did not run, so perhaps no process did."""
SERVER_SILENCE_S = 15.0
"""A server that answers no health request for longer hangs."""
CLOSED_S = 1.0
"""A server that refuses connections for longer is ending, as on a SIGTERM that is not ours. It
leaves open streams without a word meanwhile."""
CARD_SILENCE_S = 15.0
"""A `card` that is silent for longer waits for Triton to take a response. Only another server
helps."""
UNNOTED_S = 0.3
"""Shorter silences are not looked into: to read all threads of a process takes a millisecond."""
MOST_TIMES = 10
"""Waiting for a processor excuses at most so many times the silence that is allowed: a process that
spins for ever waits for processors too where others want them."""


class ProcessState(Enum):
    """What the kernel says about a process; a zombie is gone."""

    RUNNING = "running"
    STOPPED = "stopped"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Sight:
    """One look at a model's process.

    silence_s  seconds since its last heartbeat; 0 for a model that has none, or not yet
    starved_s  how many of them do not count, because the process waited for a processor
    attached   whether it takes part in serving; only engines may not (yet)
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
    """One look at the server: seconds since it last answered, and whether it takes connections."""

    process: ProcessState
    silence_s: float = 0.0
    listens: bool = True


@dataclass(slots=True)
class Lasting:
    """For how long conditions have been seen to hold without a break."""

    _since_s: dict[str, float] = field(default_factory=dict)

    def seconds(self, condition: str, holds: bool, now_s: float) -> float:
        if not holds:
            self._since_s.pop(condition, None)
            return 0.0
        return now_s - self._since_s.setdefault(condition, now_s)

    def forget(self, prefix: str = "") -> None:
        """Begin anew with all conditions that have this prefix."""
        for condition in [name for name in self._since_s if name.startswith(prefix)]:
            del self._since_s[condition]


class Watch:
    """What is wrong, look after look. Times are seconds on one monotonic clock."""

    def __init__(self, *, engine_timeout_s: float, load_timeout_s: float) -> None:
        self._engine_timeout_s = engine_timeout_s
        self._load_timeout_s = load_timeout_s
        self._looked_s = self._lenient_until_s = -math.inf
        self._lasting = Lasting()

    def look(self, now_s: float) -> None:
        """Begin a look. After a pause of the whole machine or container every process gets the
        time to speak again before its silence counts; a process that is gone is still gone."""
        if now_s - self._looked_s > BLINK_S:
            self._lenient_until_s = now_s + self._engine_timeout_s
            self._lasting.forget()
        self._looked_s = now_s

    def forget(self, model: str) -> None:
        """A new process of this model gets a time of its own."""
        self._lasting.forget(f"{model} ")

    def model(self, model: str, sight: Sight) -> str | None:
        """Why this model is lost; None: it is not."""
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
        """Why the server is lost. `card` is None where it cannot be judged, as in a reload."""
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
    """What the kernel says of one thread: nanoseconds that it ran, and that it waited for a
    processor without a wait that lasts; whether it runs now or waits for a processor."""

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
    """Which part of the silences of a process, and of its successors, is due to the machine.

    The kernel adds a wait when it ends; until then the thread is ready and does not run. All
    threads count, because the one that beats may wait for another, as for the interpreter's lock.
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

"""Attaches the engines to `card`'s pool.

An engine process reports in the pool that it is loaded. `card` then sends it an attach request with
the pool's key. The engine reports in the pool that it is attached; `card` does not wait for the
response, because a request to a dying process never returns. So each request has a thread that
`card` never joins.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from card.cache import ENGINES, EngineState, Pool
from card.processes import started
from card.serving.log import EventLog

log = logging.getLogger(__name__)

KEY, DEADLINE, ATTACHED_EPOCH = "key", "deadline_ns", "epoch"
"""Tensors of the attach request and of its response."""

WATCH_S = 0.1
QUIET_S = 10.0
"""Least seconds between two lines, so that a client that tries keys cannot fill the log."""
_ATTACH_LIMIT_NS = 5_000_000_000
"""`card` repeats the attach request to an engine that does not attach in this time."""


class Attacher:
    """Watches the engines from a thread of its own.

    Ends the process when its server is gone, because a busy stub does not notice that.
    `ask(engine, key, deadline_ns)` sends the attach request and may block forever; the deadline
    is on the monotonic clock. The attacher calls `report(engine, alive)` whenever `alive` changes.

    engines  the engines of this service
    fresh_s  an engine silent for longer gets no request, because it may be dead or stopped
    """

    def __init__(
        self,
        pool: Pool,
        key: str,
        engine_timeout_s: float,
        ask: Callable[[str, str, int], None],
        report: Callable[[str, bool], None],
        engines: Sequence[str] = ENGINES,
        fresh_s: float = 0.5,
    ) -> None:
        self._fresh_s = fresh_s
        self._engines = engines
        self._pool = pool
        self._key = key
        self._engine_timeout_s = engine_timeout_s
        self._ask = ask
        self._report = report
        self._asked: dict[str, tuple[int, int]] = {}  # engine -> (pid, deadline_ns)
        self._alive: dict[str, bool] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="attacher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _watch(self) -> None:
        server_pid = os.getppid()
        while not self._stopping.wait(WATCH_S):
            if os.getppid() != server_pid:
                os._exit(0)
            if not self._pool.path.exists():
                log.critical(
                    "the cache pool was removed: %s (see RemoveIPC in docs/operations.md); "
                    "the process ends",
                    self._pool.path,
                )
                os._exit(1)
            try:
                self.look()
            except Exception:
                # Without this thread no engine would attach any more, without any error.
                log.critical("the attacher failed; the process ends", exc_info=True)
                os._exit(1)

    def look(self) -> None:
        """Send attach requests to loaded engines; report engines that began or ceased to live."""
        for engine in self._engines:
            if self._should_ask(engine):
                pid, deadline_ns = self._pool.pid(engine), time.monotonic_ns() + _ATTACH_LIMIT_NS
                self._asked[engine] = (pid, deadline_ns)
                threading.Thread(
                    target=self._ask_in, args=(engine, pid, deadline_ns), daemon=True
                ).start()
            alive = self._pool.is_alive(engine, self._engine_timeout_s)
            if alive != self._alive.get(engine):
                self._alive[engine] = alive
                self._report(engine, alive)

    def _ask_in(self, engine: str, pid: int, deadline_ns: int) -> None:
        self._ask(engine, self._key, deadline_ns)
        # After a response without an attachment (Triton may not serve it yet) ask again.
        if self._asked.get(engine) == (pid, deadline_ns):
            del self._asked[engine]

    def _should_ask(self, engine: str) -> bool:
        pool = self._pool
        loaded = pool.engine_state(engine) is EngineState.LOADED
        if not loaded or pool.silence_s(engine) > self._fresh_s:
            return False
        pid, deadline_ns = self._asked.get(engine, (0, 0))
        return pid != pool.pid(engine) or time.monotonic_ns() > deadline_ns


class Losses:
    """Counts the processes of an engine that ended, each once, even short-lived ones."""

    def __init__(self, pool: Pool, engine: str) -> None:
        self._pool = pool
        self._engine = engine
        self._pid = 0
        self._ended = True
        self._lost = 0

    def count(self) -> int:
        """Number of processes that ended, or were replaced, since the first look."""
        pid = self._pool.pid(self._engine)
        if pid != self._pid:
            self._lost += not self._ended
            self._pid, self._ended = pid, pid == 0
        if not self._ended and started(pid) is None:
            self._lost += 1
            self._ended = True
        return self._lost


def is_dead(pool: Pool, engine: str) -> bool:
    """Whether `engine` can no longer write to a slot: it is not attached, or its process ended.

    A stopped or silent process is not dead, because it may continue.
    """
    if pool.engine_state(engine) is not EngineState.ATTACHED:
        return True
    return started(pool.pid(engine)) is None


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

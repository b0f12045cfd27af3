"""The life of an engine process: it reports itself to `card`, attaches to the pool, and beats.

The process has two threads besides the one that answers Triton. The heartbeat thread finds the pool
and writes heartbeats; the loop thread decodes (target) or drafts (draft). This module needs neither
Triton nor a model, so that tests can run all of it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from card.cache import EngineState, Geometry, Pool
from card.serving.requests.refusal import Refusal

log = logging.getLogger(__name__)

BEAT_S = 0.1
_SHORTEST_WAIT_S = 0.0002
LONGEST_WAIT_S = 0.004
_WAIT_GROWTH = 1.1
"""Growth of the pause between two looks of an idle loop while slots are in use. A ring of the slot
bell (a slot opens or closes, or the target restarts its draft) wakes the loop at once. A stopped
draft does not look, because each look takes 0.1 ms from a target that uses every core."""


class Loop(Protocol):
    """The work of an attached engine; see `card.decoding` and `card.drafting`."""

    def step(self) -> bool:
        """Make one pass over all work; returns whether there was any."""

    @property
    def is_idle(self) -> bool:
        """Whether the loop has no work before the pool's `slot_bell` rings."""


class EngineProcess:
    """Attaches to the pool when `card` asks, and steps the loop until another `card` takes over.

    `beat_s` is the interval of heartbeats, and the longest pause of an idle loop. `die` is called
    with an exit status when the process cannot continue: its loop raised, or its server is gone.
    The supervisor then loads the model again.
    """

    def __init__(
        self,
        role: str,
        directory: Path,
        geometry: Geometry,
        make_loop: Callable[[Pool], Loop],
        *,
        engine_timeout_s: float,
        server_pid: int,
        beat_s: float = BEAT_S,
        die: Callable[[int], object] = os._exit,
    ) -> None:
        self._role = role
        self._directory = directory
        self._geometry = geometry
        self._make_loop = make_loop
        self._timeout_ns = int(engine_timeout_s * 1e9)
        self._server_pid = server_pid
        self._beat_s = beat_s
        self._die = die
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._pool: Pool | None = None
        self._attached_epoch: int | None = None
        self._stopping = False
        self._step_began_ns: int | None = None
        self._threads = [
            threading.Thread(target=self._guarded(work), name=f"{role} {name}", daemon=True)
            for name, work in (("heartbeat", self._beat_for_ever), ("loop", self._loop_for_ever))
        ]

    def start(self) -> None:
        """Report the loaded model and start both threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Leave the pool and end both threads."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        if self._pool is not None:
            self._pool.beat(self._role, EngineState.ABSENT)
            self._pool.close()
            self._pool = None

    def attach(self, key: str, deadline_ns: int) -> int:
        """Serve the pool of this key; returns the pool's epoch. Raises `Refusal`.

        A request after its deadline (monotonic clock) is refused as too old.
        """
        with self._changed:
            pool = self._current_pool()
            if pool is None or not pool.admits(key):
                if pool is not None:
                    pool.count_denial(self._role)
                raise Refusal(
                    "PERMISSION_DENIED",
                    f"{self._role} answers only the attach request of card with its key; "
                    "send requests to ensemble",
                )
            if time.monotonic_ns() > deadline_ns:
                raise Refusal("DEADLINE_EXCEEDED", f"this attach request to {self._role} is old")
            self._attached_epoch = pool.epoch
            self._changed.notify_all()
            self._beat(pool)
            return pool.epoch

    # --- heartbeat ----------------------------------------------------------------------------

    def _beat_for_ever(self) -> None:
        spare = SpareMemory()
        with self._changed:
            while not self._stopping:
                if os.getppid() != self._server_pid:
                    self._die(0)
                    return
                pool = self._current_pool()
                if pool is not None and not self._is_stuck():
                    self._beat(pool)
                spare.give_back()
                self._changed.wait(self._beat_s)

    def _current_pool(self) -> Pool | None:
        """The pool of the `card` that lives now. Detaches when the pool changed."""
        pool = self._pool
        if pool is not None and not pool.path.exists():
            self._attached_epoch = None
            if self._step_began_ns is not None:
                return None  # the loop still uses the old pool
            pool.close()
            self._pool = pool = None
        if pool is None:
            self._pool = pool = Pool.open(self._directory, self._server_pid, self._geometry)
        if pool is not None and self._attached_epoch not in (None, pool.epoch):
            self._attached_epoch = None
        return pool

    def _beat(self, pool: Pool) -> None:
        attached = self._attached_epoch is not None
        pool.beat(self._role, EngineState.ATTACHED if attached else EngineState.LOADED)

    def _is_stuck(self) -> bool:
        """Whether the present step has lasted longer than an engine may be silent."""
        began = self._step_began_ns
        return began is not None and time.monotonic_ns() - began > self._timeout_ns

    # --- loop ---------------------------------------------------------------------------------

    def _loop_for_ever(self) -> None:
        loop, served = None, None
        while (attachment := self._next_attachment()) is not None:
            pool, epoch = attachment
            if loop is None or served is not pool:
                loop, served = self._make_loop(pool), pool
            # A loop that outlives a `card` drops the sessions that this `card` closed.
            self._serve(loop, pool, epoch)

    def _next_attachment(self) -> tuple[Pool, int] | None:
        with self._changed:
            while not self._stopping:
                if self._pool is not None and self._attached_epoch == self._pool.epoch:
                    self._step_began_ns = time.monotonic_ns()
                    return self._pool, self._attached_epoch
                self._changed.wait(self._beat_s)
        return None

    def _serve(self, loop: Loop, pool: Pool, epoch: int) -> None:
        """Step until another `card` takes over or the process ends; pause while idle."""
        wait_s = _SHORTEST_WAIT_S
        try:
            while self._attached_epoch == epoch and pool.epoch == epoch and not self._stopping:
                self._step_began_ns = time.monotonic_ns()
                rings = pool.slot_bell.rings
                if loop.step():
                    wait_s = _SHORTEST_WAIT_S
                elif pool.states.any() and not loop.is_idle:
                    pool.slot_bell.wait(rings, wait_s)
                    wait_s = min(_WAIT_GROWTH * wait_s, LONGEST_WAIT_S)
                else:
                    pool.slot_bell.wait(rings, self._beat_s)
                    wait_s = _SHORTEST_WAIT_S
        finally:
            self._step_began_ns = None

    def _guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        """`work`, changed to end the process on any error: an engine needs both of its threads."""

        def run() -> None:
            try:
                work()
            except BaseException:
                log.critical("a thread failed; the process ends", exc_info=True)
                self._die(1)

        return run


PERIOD_S = 5.0


class SpareMemory:
    """The spare memory of this process; does nothing if the C library lacks `malloc_trim`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_s = clock() + PERIOD_S
        self._trim: Callable[[int], int] = getattr(ctypes.CDLL(None), "malloc_trim", _keep)

    def give_back(self) -> None:
        """Return freed memory if it is due."""
        if self._clock() >= self._due_s:
            self._trim(0)
            self._due_s = self._clock() + PERIOD_S


def _keep(_: int) -> int:
    return 0

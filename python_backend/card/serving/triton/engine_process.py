"""An engine's life in its process: found by `card`, attached to the pool, heard every 100 ms.

Two threads besides the one that answers Triton. The heartbeat thread looks for the pool and tells
that the process lives; the loop thread decodes (target) or drafts (draft). Nothing here knows
Triton or a model, so the whole life is tested without either.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from card.cache import EngineState, Geometry, Pool
from card.serving.requests.refusal import Refusal
from card.serving.spare_memory import SpareMemory

log = logging.getLogger(__name__)

BEAT_S = 0.1
_SHORTEST_WAIT_S = 0.0002
LONGEST_WAIT_S = 0.004
_WAIT_GROWTH = 1.1
"""How often a loop looks for what the other model did, while slots are in use: first often, then
ever more rarely. A slot that is opened or closed wakes it at once, and so does a target that wants
a draft again: one that is stopped does not look, for each look takes a tenth of a millisecond from
a target that has every core."""


class Loop(Protocol):
    """What an engine does while it is attached; see `card.decoding` and `card.drafting`."""

    def step(self) -> bool:
        """Do one pass of whatever there is to do; whether there was anything."""

    @property
    def is_idle(self) -> bool:
        """Whether there will be nothing to do before the pool's `slot_bell` rings."""


class EngineProcess:
    """Attaches to the pool when `card` asks, and steps the loop until `card` is another.

    `beat_s` is how often it beats, and an idle loop looks though no bell rang. `die` is called with
    an exit status when the process is of no use any more: its loop raised, or its server is gone.
    The supervisor loads the model again.
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
        """The model is loaded: begin to be found."""
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
        """Serve the pool whose key this is; returns the pool's epoch. Raises `Refusal`.

        A request that is read after its deadline (monotonic clock) is refused as too old.
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
        """The pool of the `card` that lives now. Detaches when it is another than before."""
        pool = self._pool
        if pool is not None and not pool.path.exists():
            self._attached_epoch = None
            if self._step_began_ns is not None:
                return None  # the loop still looks at the old pool
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
        """Whether one step has lasted longer than an engine may be silent."""
        began = self._step_began_ns
        return began is not None and time.monotonic_ns() - began > self._timeout_ns

    # --- loop ---------------------------------------------------------------------------------

    def _loop_for_ever(self) -> None:
        loop, served = None, None
        while (attachment := self._next_attachment()) is not None:
            pool, epoch = attachment
            if loop is None or served is not pool:
                loop, served = self._make_loop(pool), pool
            # A loop that outlives a `card` drops the sessions that this one closed.
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
        """Step until `card` is another or the process ends; wait a little while idle."""
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
        """Whatever goes wrong in a thread ends the process: half an engine helps nobody."""

        def run() -> None:
            try:
                work()
            except BaseException:
                log.critical("a thread failed; the process ends", exc_info=True)
                self._die(1)

        return run

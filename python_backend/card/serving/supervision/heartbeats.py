"""The life of the engines and of `card` as the cache pool tells it."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from card.cache import ENGINES, EngineState, Geometry, SlotState
from card.serving.found_pool import FoundPool
from card.serving.supervision.policy import CARD, ProcessState, Sight
from card.serving.supervision.starvation import Starvation


class Heartbeats:
    """Reads the pool of one server, as soon as `card` has made it; from any thread."""

    def __init__(self, directory: Path, server_pid: int, geometry: Geometry) -> None:
        self._pool = FoundPool(directory, server_pid, geometry)
        self._lock = threading.Lock()
        self._starvation = {engine: Starvation() for engine in ENGINES}

    def sight(
        self, engine: str, pid: int, process: ProcessState = ProcessState.RUNNING
    ) -> Sight | None:
        """What `engine` last said; None while its process `pid` has not beaten yet."""
        with self._lock:
            pool = self._pool.get()
            if pool is None or pool.pid(engine) != pid:
                return None
            attached = pool.engine_state(engine) is EngineState.ATTACHED
            silence_s = pool.silence_s(engine)
            starved_s = self._starvation[engine].of(pid, silence_s)
            return Sight(process, silence_s, starved_s, attached)

    def card_silence_s(self, pid: int) -> float:
        """Seconds since `card` last beat; 0 while its process `pid` has not yet."""
        with self._lock:
            pool = self._pool.get()
            return pool.silence_s(CARD) if pool is not None and pool.pid(CARD) == pid else 0.0

    def open_slots(self) -> int:
        """Sessions that run now."""
        with self._lock:
            pool = self._pool.get()
            return 0 if pool is None else int(np.count_nonzero(pool.states == SlotState.OPEN))

    def close(self) -> None:
        with self._lock:
            self._pool.close()

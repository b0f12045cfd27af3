"""The pool of the present `card`, for processes that read it now and then."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock

from card.cache import Geometry, Pool
from card.serving.geometry import pool_geometry
from card.settings import Settings


class FoundPool:
    """Opens the pool at its first use, and again when a new `card` made another."""

    def __init__(self, directory: Path, server_pid: int, geometry: Geometry) -> None:
        self._directory = directory
        self._server_pid = server_pid
        self._geometry = geometry
        self._pool: Pool | None = None
        self._lock = Lock()

    @classmethod
    def of_this_server(cls, settings: Settings) -> FoundPool:
        """For a model's process."""
        return cls(settings.cache.directory, os.getppid(), pool_geometry(settings))

    def get(self) -> Pool | None:
        """The pool; None while there is none."""
        if self._pool is not None and not self._pool.path.exists():
            self.close()
        if self._pool is None:
            self._pool = Pool.open(self._directory, self._server_pid, self._geometry)
        return self._pool

    def abandon(self, place: int, session_id: int) -> None:
        """Mark the request at `place` as abandoned, for `card`; callable from any thread."""
        with self._lock:
            pool = self.get()
            if pool is not None and 0 <= place < pool.geometry.places:
                pool.abandoned[place] = session_id

    def token(self) -> str | None:
        """The pool's token; None while there is no pool. Callable from any thread."""
        with self._lock:
            pool = self.get()
            return None if pool is None else pool.token

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

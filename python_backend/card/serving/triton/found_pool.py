"""The pool, for models that are asked by clients and look into it now and then."""

from __future__ import annotations

import os
from threading import Lock

from card.cache import Pool
from card.serving.geometry import pool_geometry
from card.settings import Settings


class FoundPool:
    """Opened when it is first wanted, and anew when a new `card` made another."""

    def __init__(self, settings: Settings) -> None:
        self._directory = settings.cache.directory
        self._geometry = pool_geometry(settings)
        self._pool: Pool | None = None
        self._abandoning = Lock()

    def get(self) -> Pool | None:
        """That of the `card` that lives now; None while there is none."""
        if self._pool is not None and not self._pool.path.exists():
            self._pool.close()
            self._pool = None
        if self._pool is None:
            self._pool = Pool.open(self._directory, os.getppid(), self._geometry)
        return self._pool

    def abandon(self, place: int, session_id: int) -> None:
        """Tell `card`, which owns the session, from any thread that nobody waits for its request at
        that place."""
        with self._abandoning:
            pool = self.get()
            if pool is not None and 0 <= place < pool.geometry.places:
                pool.abandoned[place] = session_id

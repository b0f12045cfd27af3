"""How a model that sees a client leave tells `card`, which owns the session."""

from __future__ import annotations

import os

from card.cache import Pool
from card.serving.geometry import pool_geometry
from card.settings import Settings


class Abandoning:
    """Marks requests in the pool whose client is gone."""

    def __init__(self, settings: Settings) -> None:
        self._directory = settings.cache.directory
        self._geometry = pool_geometry(settings)

    def mark(self, place: int, session_id: int) -> None:
        """Nobody waits for the request of this session at that place."""
        # Opened anew each time: clients leave seldom, and a restarted `card` may have a new pool.
        pool = Pool.open(self._directory, os.getppid(), self._geometry)
        if pool is None:
            return
        if 0 <= place < pool.geometry.places:
            pool.abandoned[place] = session_id
        pool.close()

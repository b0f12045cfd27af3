"""Notices when `card` opened or closed slots, so that engines look at them only then."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from card.cache.pool import Pool


class SlotWatch:
    """Remembers states and generations of all slots between two looks."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._seen: NDArray[np.int64]
        self.forget()

    def changed(self) -> bool:
        """Whether any slot changed since the last look (at the first look: yes)."""
        before = self._seen
        self._seen = np.stack([self._pool.states, self._pool.generations])
        return not np.array_equal(before, self._seen)

    def forget(self) -> None:
        """Look again next time: something could not be read yet."""
        self._seen = np.full((2, self._pool.geometry.slots), -1, np.int64)

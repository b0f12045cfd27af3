"""A slot's record in the cache; a watcher looks after every store into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from card.cache.header import Record

Look = Callable[[], None]


class _WatchedArray(np.ndarray[Any, Any]):
    look: Look

    def __array_finalize__(self, source: Any) -> None:
        self.look = getattr(source, "look", lambda: None)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)  # type: ignore[no-untyped-call]
        self.look()


class WatchedRecord:
    def __init__(self, record: Record, look: Look) -> None:
        self._record = record
        self._look = look

    def __getitem__(self, name: str) -> Any:
        value = self._record[name]
        if isinstance(value, np.ndarray) and value.ndim:
            watched = value.view(_WatchedArray)
            watched.look = self._look
            return watched
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        self._record[name] = value
        self._look()

    def __contains__(self, name: str) -> bool:
        return name in self._record

    def words(self, name: str) -> memoryview[Any]:
        return self._record.words(name)

    def write(self, name: str, at: int, values: Sequence[float] | NDArray[Any]) -> None:
        self._record.write(name, at, values)
        self._look()

"""Lets the models of one service load at the same time, and measure one after the other.

The measured costs decide how a service decodes. While another model loads, a measurement would not
show the gain of a second core.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_FILE = "loading.lock"


class LoadLock:
    """One process's handle of a lock: loading models share it, and a measuring model holds it
    alone. If the lock's file cannot be made, no model waits.

    directory  directory of the service; None: no other model loads
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._descriptor: int | None = None

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Let no other model measure while this model loads."""
        self._descriptor = self._opened()
        try:
            self._lock(fcntl.LOCK_SH)
            yield
        finally:
            if self._descriptor is not None:
                # Closing alone would leave the lock with the children of this process.
                self._lock(fcntl.LOCK_UN)
                os.close(self._descriptor)
            self._descriptor = None

    def begin_measuring(self) -> None:
        """Let no other model load until `loading` ends. Waits until all others have loaded or
        measured."""
        # The kernel first releases the shared lock, so two waiting models cannot block each other.
        self._lock(fcntl.LOCK_EX)

    def _opened(self) -> int | None:
        if self._directory is None:
            return None
        with contextlib.suppress(OSError):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(self._directory / _FILE, os.O_RDWR | os.O_CREAT, 0o600)
        return None

    def _lock(self, operation: int) -> None:
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, operation)

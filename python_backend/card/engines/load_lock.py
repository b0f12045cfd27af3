"""Models of one service that load at once, and measure one after the other.

What passes cost decides how a service decodes from then on. Measured while another model loads
beside it, a second core looks as if it were worth nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_FILE = "loading.lock"


class LoadLock:
    """One process's part in a lock that all models share which load, and one has for itself while
    it measures. Where the lock's file cannot be made, no model waits.

    directory  that of the service; None: no other model loads
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._descriptor: int | None = None

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """While this model loads no other measures."""
        self._descriptor = self._opened()
        try:
            self._lock(fcntl.LOCK_SH)
            yield
        finally:
            if self._descriptor is not None:
                # Closing alone would leave the lock with whatever this process has forked.
                self._lock(fcntl.LOCK_UN)
                os.close(self._descriptor)
            self._descriptor = None

    def begin_measuring(self) -> None:
        """Let no other model load until `loading` ends. Waits until all others are loaded, or have
        measured."""
        # The kernel lets go of what is held first, so two that want this wait for each other once.
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

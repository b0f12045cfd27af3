"""Asks the server over and over whether it serves, from a thread of its own.

A server that hangs holds up this thread and never the watch over the processes.
"""

from __future__ import annotations

import threading
import time

from card.serving.supervision.policy import ENSEMBLE
from card.serving.supervision.repository import Repository, RepositoryError

_PERIOD_S = 0.25


class Probe:
    """What the server last answered about the ensemble.

    Attributes:
        ready: whether it would take a request.
        listens: whether it takes connections, as far as is known.
    """

    def __init__(self, repository: Repository) -> None:
        self.ready = False
        self.listens = True
        self._repository = repository
        self._answered_s = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def silence_s(self) -> float:
        """Seconds since the last answer, whatever it was."""
        return time.monotonic() - self._answered_s

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                self.ready = self._repository.is_ready(ENSEMBLE)
                self._answered_s = time.monotonic()
                self.listens = True
            except RepositoryError as error:
                self.ready = False
                self.listens = not isinstance(error.__cause__, ConnectionRefusedError)
            if self._closed.wait(_PERIOD_S):
                return

"""Hears in a thread of its own that a session began or ended, and tells the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from card.cache import Bell

_WAIT_S = 0.1
"""How often the thread looks whether it is to stop."""


class Listener:
    """Calls `heard` on `loop` after a ring; many rings at once may be one call."""

    def __init__(
        self, bell: Bell, loop: asyncio.AbstractEventLoop, heard: Callable[[], None]
    ) -> None:
        self._bell = bell
        self._loop = loop
        self._heard = heard
        self._stopping = False
        self._rings = bell.rings  # before the thread begins: no ring is missed meanwhile
        self._thread = threading.Thread(target=self._listen, name="commits", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Call no more; returns once that holds."""
        self._stopping = True
        self._thread.join()

    def _listen(self) -> None:
        while not self._stopping:
            self._bell.wait(self._rings, _WAIT_S)
            if (now := self._bell.rings) != self._rings:
                self._rings = now
                self._loop.call_soon_threadsafe(self._heard)

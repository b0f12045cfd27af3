"""How many calls are open at a time. An idle call makes room for a new one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Result = TypeVar("Result")


class FullError(Exception):
    """As many calls are open as may be, and none of them is idle."""


class LostError(Exception):
    """The call was idle, and another one wanted its place."""


class Place:
    """What one call has taken.

    A call is idle while nothing was said in it, in either direction, unless it asked and waits for
    an answer. Of several requests in one stream any answer counts: the guard reads no answers.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._heard_s = clock_s()
        self._waits = False
        self._lost = asyncio.Event()

    def asked(self) -> None:
        """Its client asked and waits for an answer."""
        self._waits = True

    def answered(self) -> None:
        self._waits = False
        self._heard_s = self._clock_s()

    @property
    def idle_s(self) -> float:
        return 0.0 if self._waits else self._clock_s() - self._heard_s

    def lose(self) -> None:
        self._lost.set()

    async def hold(self, work: Awaitable[Result]) -> Result:
        """Do the work while the place is kept. Raises `LostError`, and cancels it, once it is
        lost."""
        working = asyncio.ensure_future(work)
        losing = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait({working, losing}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise LostError
        finally:
            losing.cancel()
            working.cancel()


class Admission:
    """Hands out places.

    calls   at a time
    idle_s  for which a call must be idle to be ended for another one; more than a second, for that
            is how often `card` sends a sign of life to a client that waits
    """

    def __init__(
        self, calls: int, idle_s: float, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls = calls
        self._idle_s = idle_s
        self._clock_s = clock_s
        self._taken: set[Place] = set()

    @contextmanager
    def place(self) -> Iterator[Place]:
        """A place for as long as the block runs. Raises `FullError`."""
        if len(self._taken) >= self._calls:
            self._make_room()
        place = Place(self._clock_s)
        self._taken.add(place)
        try:
            yield place
        finally:
            self._taken.discard(place)

    def _make_room(self) -> None:
        idlest = max(self._taken, key=lambda place: place.idle_s)
        if idlest.idle_s < self._idle_s:
            raise FullError
        self._taken.discard(idlest)
        idlest.lose()

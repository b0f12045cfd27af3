"""Limits the calls that are open at a time. A new call may replace an idle one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Result = TypeVar("Result")


class FullError(Exception):
    """The most calls are open, and none of them is idle."""


class LostError(Exception):
    """The call was idle, and another call took its place."""


class Place:
    """The place of one call.

    A call is idle while it has no message in either direction, unless its client waits for an
    answer. For several requests in one stream any answer counts, because the guard reads no
    answers.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._heard_s = clock_s()
        self._waits = False
        self._lost = asyncio.Event()

    def asked(self) -> None:
        """Record that the client sent a request and waits for an answer."""
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
        """Run `work` while the call keeps its place. When it loses the place, cancel the work and
        raise `LostError`."""
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

    calls   most calls at a time
    idle_s  least idle seconds of a call that is ended for another one; more than a second, the
            interval of `card`'s empty deltas to a waiting client
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

"""Virtual time: processes that work, wait for each other, and share devices.

A process is a generator. It yields `Work` to take time, or a `Signal` to sleep until somebody
raises it. Processes that work on one device at the same time slow each other down once their
demands on its memory bandwidth add up to more than the device has.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Work:
    """So many milliseconds if nothing else ran.

    demand  share of the device's memory bandwidth that it takes then, in [0, 1]
    """

    ms: float
    device: str = ""
    demand: float = 0.0


@dataclass(slots=True)
class Signal:
    """Wakes its sleepers `delay_ms` after it was raised."""

    delay_ms: float = 0.0
    raised: int = 0


Process = Generator[Work | Signal, None, None]


@dataclass(slots=True)
class _Running:
    process: Process
    work: Work | None = None
    left_ms: float = 0.0
    awaited: Signal | None = None
    seen: int = 0


@dataclass(slots=True)
class Clock:
    """Runs processes until the first of them ends."""

    now: float = 0.0
    _running: list[_Running] = field(default_factory=list)

    def start(self, process: Process) -> None:
        self._running.append(_Running(process))

    def run(self) -> None:
        """Let time pass until the process that was started first has ended.

        Raises:
            RuntimeError: everybody waits for somebody else.
        """
        first = self._running[0]
        while True:
            for one in list(self._running):
                while one.work is None and one.awaited is None:
                    try:
                        self._begin(one, next(one.process))
                    except StopIteration:
                        if one is first:
                            return
                        self._running.remove(one)
                        break
            if self._wake():
                continue
            working = [one for one in self._running if one.work is not None]
            if not working:
                raise RuntimeError("both loops wait for each other")
            self._pass_time(working)

    def _begin(self, one: _Running, wish: Work | Signal) -> None:
        if isinstance(wish, Signal):
            one.awaited, one.seen = wish, wish.raised
        else:
            one.work, one.left_ms = wish, wish.ms

    def _wake(self) -> bool:
        woken = [one for one in self._running if one.awaited and one.awaited.raised > one.seen]
        for one in woken:
            assert one.awaited is not None
            one.work = Work(one.awaited.delay_ms)
            one.left_ms = one.awaited.delay_ms
            one.awaited = None
        return bool(woken)

    def _pass_time(self, working: list[_Running]) -> None:
        slowed = [self._slowed(one, working) for one in working]
        step = min(one.left_ms * factor for one, factor in zip(working, slowed, strict=True))
        self.now += step
        for one, factor in zip(working, slowed, strict=True):
            one.left_ms -= step / factor
            if one.left_ms <= 1e-9:
                one.work = None

    def _slowed(self, one: _Running, working: list[_Running]) -> float:
        """How much longer everything takes while these work on the same device."""
        assert one.work is not None
        if not one.work.demand:
            return 1.0
        demands = [
            other.work.demand
            for other in working
            if other.work is not None and other.work.device == one.work.device
        ]
        return max(1.0, sum(demands))

"""What a pass costs by its rows and sessions: assumed at first, then as passes that serve take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from card.engines.row_costs import CostCurve

_Reckoned = TypeVar("_Reckoned")

CONTENTION = 1.2
"""How much longer a pass takes beside a draft at work than alone on its threads, until measured."""
SOUND = 2.0
"""Passes whose mean is taken for what such a pass costs."""
PRIOR = 6.0
"""Candidates or passes that what is assumed counts for beside what is measured. After so many
passes, too, what follows from their costs is reckoned anew."""
MEMORY = 96.0
"""Passes or candidates that are remembered; older ones fade."""


def size_of(sessions: int) -> int:
    """Numbers of sessions that are taken for alike: 1, 2, 3 to 4, 5 to 8, 9 to 16, ..."""
    return (sessions - 1).bit_length()


class PassCosts:
    """Milliseconds of a pass, alone or beside a draft at work.

    What was measured at load is multiplied by what passes that serve say of the machine's speed, of
    the draft beside them, of their rows, and of a change of rows from one pass to the next. Each is
    learnt by itself, so that a slow hour of the machine says nothing about rows. What is not seen
    again is forgotten.

    curve        what was measured at load, by rows
    alone_share  share of it that a pass takes while the draft is stopped
    """

    def __init__(self, curve: CostCurve, alone_share: float) -> None:
        self._curve = curve
        self._prior = {True: alone_share, False: CONTENTION}
        self._speed = Factor(1.0)
        self._change = Factor(1.0)
        self._ways: dict[_Way, Factor] = {}
        self._rows: dict[tuple[_Way, int], Factor] = {}
        self._passes: Counter[_Way] = Counter()
        self._last: tuple[_Way, int] | None = None
        self._planned: Counter[int] = Counter()
        self._wait = Factor(1.0)
        self._lately: dict[Hashable, object] = {}

    def ms(self, rows: int, sessions: int, *, alone: bool) -> float:
        """Of a pass that so many sessions share, behind one of as many rows."""
        way = alone, size_of(sessions)
        return self._share_of(way) * self._ms_of_rows(way, rows)

    def next_ms(self, rows: int, sessions: int, *, alone: bool) -> float:
        """Of the next pass, if it has so many rows."""
        way = alone, size_of(sessions)
        return self._share_of(way) * self._next_ms_of_rows(way, rows)

    def best_rows(self, worth: Sequence[float], sessions: int, *, alone: bool) -> int:
        """How many candidates of so many sessions to verify for most tokens per millisecond.

        worth  [candidates] chance that each is accepted, best first
        """
        way = alone, size_of(sessions)
        return self._curve.best_rows(worth, sessions, lambda rows: self._next_ms_of_rows(way, rows))

    def least_chance(self, sessions: int, *, alone: bool) -> float:
        """Chance below which no candidate is worth its row, whatever others there are."""
        return self.lately(("least", sessions, alone), lambda: self._least_chance(sessions, alone))

    def lately(self, what: Hashable, reckon: Callable[[], _Reckoned]) -> _Reckoned:
        """What was reckoned from these costs not long ago; a few passes change little."""
        if what not in self._lately:
            self._lately[what] = reckon()
        return cast(_Reckoned, self._lately[what])

    def _least_chance(self, sessions: int, alone: bool) -> float:
        way = alone, size_of(sessions)
        plain_ms = self._next_ms_of_rows(way, sessions)
        return min(
            (
                (self._next_ms_of_rows(way, rows) / plain_ms - 1.0) * sessions / (rows - sessions)
                for rows in self._curve.numbers
                if rows > sessions
            ),
            default=0.0,
        )

    def knows_plain(self, sessions: int) -> bool:
        """Whether passes of one row for each session were measured without the draft."""
        known = self._rows.get(((True, size_of(sessions)), self._curve.padded(sessions)))
        return known is not None and known.is_sound

    def plans_plain(self, sessions: int) -> bool:
        """One more pass of so many sessions is planned without the draft: whether it is to have no
        candidates, so that it is known what such a pass costs; some of the first ones, and later
        two of many."""
        planned = self._planned[size_of(sessions)]
        self._planned[size_of(sessions)] += 1
        if not self.knows_plain(sessions):
            return planned < 2 + SOUND
        return planned % (2 * MEMORY) < 2

    def learn(self, rows: int, sessions: int, seconds: float, *, alone: bool) -> float:
        """A pass took so long; returns the milliseconds that it counts for, twice what was expected
        at most: a pass that the machine interrupted says little."""
        way, padded = (alone, size_of(sessions)), self._curve.padded(rows)
        passes, last = self._passes[way], self._last
        if passes % PRIOR == 0:
            self._lately.clear()
        expected = self.next_ms(rows, sessions, alone=alone)
        taken = min(1e3 * seconds, 2.0 * expected)
        of_way = self._ways.setdefault(way, Factor(self._prior[alone]))
        # The first pass of either way still has something of the other one.
        if last is not None and last[0] == way:
            of_rows = self._rows.setdefault((way, padded), Factor(1.0))
            of_rows.fade(passes)
            factors = [self._speed, of_way, *([self._change] if last[1] != padded else []), of_rows]
            share = taken / expected
            for factor in factors:  # each explains what those before it leave
                before = factor.value
                factor.add(before * share)
                share *= before / factor.value
            self._passes[way] = passes + 1
        self._last = way, padded
        return taken

    def draft_ms(self, pass_ms: float) -> float:
        """For which the target waits until the draft has made a pass.

        pass_ms  milliseconds that one took alone, at load
        """
        return pass_ms * self._wait.value

    def learn_wait(self, waited_ms: float, passes: int, pass_ms: float) -> None:
        """The target waited so long for so many passes of the draft."""
        self._wait.add(waited_ms / (passes * pass_ms))

    def _share_of(self, way: _Way) -> float:
        """What passes of this way take, whatever rows they have, of what the curve says."""
        known = self._ways.get(way)
        return self._speed.value * (self._prior[way[0]] if known is None else known.value)

    def _ms_of_rows(self, way: _Way, rows: int) -> float:
        """What the curve says of so many rows, as far as passes of this way bear it out."""
        of_rows = self._rows.get((way, self._curve.padded(rows)))
        ms = self._curve.pass_ms(rows)
        return ms if of_rows is None else ms * of_rows.at(self._passes[way])

    def _next_ms_of_rows(self, way: _Way, rows: int) -> float:
        """The same of the next pass, which may have other rows than the one before."""
        ms, last = self._ms_of_rows(way, rows), self._last
        changes = last is not None and last[0] == way and last[1] != self._curve.padded(rows)
        return ms * self._change.value if changes else ms


_Way = tuple[bool, int]
"""Whether a pass is without the draft, and how many sessions share it (`size_of`)."""


@dataclass(slots=True)
class Factor:
    """The mean of what was added of late.

    count  of that, with what was assumed
    seen   the pass at which something was added last
    """

    value: float
    count: float = 1.0
    seen: float = 0.0

    @property
    def is_sound(self) -> bool:
        """Whether so many values were added that one more changes little."""
        return self.count > SOUND

    def add(self, value: float) -> None:
        self.count = min(self.count + 1.0, MEMORY)
        self.value += (value - self.value) / self.count

    def at(self, passes: float) -> float:
        """The value as far as it is remembered after so many passes, else 1: what seemed too dear
        is tried again some time."""
        remembered = 1.0 - (passes - self.seen) / MEMORY
        return 1.0 + (self.value - 1.0) * remembered if remembered > 0.0 else 1.0

    def fade(self, passes: float) -> None:
        """Forget what is not remembered after so many passes; something is added now."""
        remembered = max(0.0, 1.0 - (passes - self.seen) / MEMORY)
        self.value = 1.0 + (self.value - 1.0) * remembered
        self.count = 1.0 + (self.count - 1.0) * remembered
        self.seen = passes

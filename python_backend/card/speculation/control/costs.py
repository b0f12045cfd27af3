"""What a pass costs by its rows and sessions: assumed at first, then as passes that serve take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from card.engines.row_costs import CostCurve

CONTENTION = 1.2
"""How much longer a pass takes beside a draft at work than alone on its threads, until measured."""
SOUND = 2.0
"""Passes whose mean is taken for what such a pass costs."""
MEMORY = 96.0
"""Passes or candidates that are remembered; older ones fade."""


def ideal_tokens(rows: int, agreement: float) -> float:
    """Expected tokens of one pass over a chain of `rows` - 1 candidates and the last committed
    token, each candidate being accepted with chance `agreement`: (1 - a^rows) / (1 - a)."""
    if agreement >= 1.0:
        return float(rows)
    return float((1.0 - agreement**rows) / (1.0 - agreement))


def size_of(sessions: int) -> int:
    """Numbers of sessions that are taken for alike: 1, 2, 3 to 4, 5 to 8, 9 to 16, ..."""
    return (sessions - 1).bit_length()


class PassCosts:
    """Milliseconds of a pass, alone or beside a draft at work.

    Passes that serve correct what was measured at load, for each number of rows by itself: the
    first row may be cheaper here, or a further one dearer, than it was at load.

    curve        what was measured at load, by rows
    alone_share  share of it that a pass takes while the draft is stopped
    """

    def __init__(self, curve: CostCurve, alone_share: float) -> None:
        self._curve = curve
        self._prior = {True: alone_share, False: CONTENTION}
        self._common = _Mean(1.0)
        self._ratio: dict[tuple[bool, int, int], _Mean] = {}
        self._was_plain = False
        self._planned: Counter[int] = Counter()

    def ms(self, rows: int, sessions: int, *, alone: bool) -> float:
        """Of a pass that so many sessions share. What was never measured is as much dearer than
        assumed as what was."""
        known = self._ratio.get(self._key(rows, sessions, alone=alone))
        ratio = self._prior[alone] * self._common.value if known is None else known.value
        return self._curve.pass_ms(rows) * ratio

    def best_rows(self, worth: Sequence[float], sessions: int, *, alone: bool) -> int:
        """How many candidates of so many sessions to verify for most tokens per millisecond.

        worth  [candidates] chance that each is accepted, best first
        """
        return self._curve.best_rows(
            worth, sessions, lambda rows: self.ms(rows, sessions, alone=alone)
        )

    def least_chance(self, sessions: int, *, alone: bool) -> float:
        """Chance below which no candidate is worth its row, whatever others there are."""
        plain_ms = self.ms(sessions, sessions, alone=alone)
        return min(
            (
                (self.ms(rows, sessions, alone=alone) / plain_ms - 1.0)
                * sessions
                / (rows - sessions)
                for rows in self._curve.numbers
                if rows > sessions
            ),
            default=0.0,
        )

    def knows_plain(self, sessions: int) -> bool:
        """Whether passes of one row for each session were measured without the draft."""
        known = self._ratio.get(self._key(sessions, sessions, alone=True))
        return known is not None and known.is_sound

    def wants_plain(self, sessions: int) -> bool:
        """Whether the next pass is to have no candidates, so that it is known what such a pass
        costs: some of the first ones of so many sessions, and later two of many."""
        planned = self._planned[size_of(sessions)]
        if not self.knows_plain(sessions):
            return planned < 2 + SOUND
        return planned % (2 * MEMORY) < 2

    def count_planned(self, sessions: int) -> None:
        """One more pass of so many sessions is planned without the draft."""
        self._planned[size_of(sessions)] += 1

    def learn(self, rows: int, sessions: int, seconds: float, *, alone: bool) -> None:
        """A pass took so long. The first one without candidates says nothing of those behind it:
        a pass of other rows than the one before takes longer."""
        was_plain, self._was_plain = self._was_plain, alone and rows == sessions
        if self._was_plain and not was_plain:
            return
        ratio = 1e3 * seconds / self._curve.pass_ms(rows)
        self._common.add(ratio / self._prior[alone])
        mean = self._ratio.setdefault(
            self._key(rows, sessions, alone=alone), _Mean(self._prior[alone] * self._common.value)
        )
        mean.add(ratio)

    def _key(self, rows: int, sessions: int, *, alone: bool) -> tuple[bool, int, int]:
        return alone, size_of(sessions), self._curve.padded(rows)


class _Mean:
    """Of what was added of late. One value counts at most twice the mean: a pass that the machine
    interrupted says little."""

    def __init__(self, prior: float) -> None:
        self.value = prior
        self._count = 1.0

    @property
    def is_sound(self) -> bool:
        """Whether so many values were added that one more changes little."""
        return self._count > SOUND

    def add(self, value: float) -> None:
        self._count = min(self._count + 1.0, MEMORY)
        self.value += (min(value, 2.0 * self.value) - self.value) / self._count

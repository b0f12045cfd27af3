"""What a pass costs by its rows and sessions: assumed at first, then as passes that serve take."""

from __future__ import annotations

from card.engines.row_costs import CostCurve

CONTENTION = 1.2
"""How much longer a pass takes beside a draft at work than alone on its threads, until measured."""
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

    curve        what was measured at load, by rows
    alone_share  share of it that a pass takes while the draft is stopped
    """

    def __init__(self, curve: CostCurve, alone_share: float) -> None:
        self._curve = curve
        self._prior = {True: alone_share, False: CONTENTION}
        self._common = _Mean(1.0)
        self._ratio: dict[tuple[bool, int], _Mean] = {}

    def ms(self, rows: int, sessions: int, *, alone: bool) -> float:
        """Of a pass that so many sessions share. What was never measured is as much dearer than
        assumed as what was."""
        known = self._ratio.get((alone, size_of(sessions)))
        ratio = self._prior[alone] * self._common.value if known is None else known.value
        return self._curve.pass_ms(rows) * ratio

    def has_measured(self, sessions: int, *, alone: bool) -> bool:
        return (alone, size_of(sessions)) in self._ratio

    def learn(self, rows: int, sessions: int, seconds: float, *, alone: bool) -> None:
        """A pass took so long."""
        ratio = 1e3 * seconds / self._curve.pass_ms(rows)
        self._common.add(ratio / self._prior[alone])
        mean = self._ratio.setdefault(
            (alone, size_of(sessions)), _Mean(self._prior[alone] * self._common.value)
        )
        mean.add(ratio)


class _Mean:
    """Of what was added of late. One value counts at most twice the mean: a pass that the machine
    interrupted says little."""

    def __init__(self, prior: float) -> None:
        self.value = prior
        self._count = 1.0

    def add(self, value: float) -> None:
        self._count = min(self._count + 1.0, MEMORY)
        self.value += (min(value, 2.0 * self.value) - self.value) / self._count

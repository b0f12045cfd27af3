"""The ways in which a pass may go, and what each should give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import ceil
from typing import NamedTuple, Protocol

from card.engines.row_costs import MOST_CHOSEN, CostCurve

AGREEMENT = 0.6
"""Share of candidates that are accepted before any was seen: what ordinary pairs reach on chats."""
PRIOR = 4.0
"""Candidates that this counts for."""
ALIKE = 24.0
"""Candidates of its kind that a new text begins with. Acceptance differs by 0.1 between texts of a
kind; that is how uncertain the mean of 24 candidates is."""
MEMORY = 128.0
"""Candidates that are remembered: where half are accepted, their mean is uncertain by 6 %."""

READY = 4
"""Candidates that a draft is believed to have ready before a pass showed it."""
UNREADY = MOST_CHOSEN - READY
SUPPLY_MEMORY = 32.0
"""Passes that are remembered of what the draft has ready."""
DOUBTED = 2.0
"""Passes that what was seen before a probe counts for."""


class Way(Enum):
    """ALONE   the draft rests; n-grams propose, and where none is worth its row nothing does
    TURNS   the target waits until the draft has had its turn
    BESIDE  the draft works while the target does
    """

    ALONE = "alone"
    TURNS = "turns"
    BESIDE = "beside"


class Rate(NamedTuple):
    """Tokens that a pass should give, milliseconds that it and what it waits for should take, and
    the draft's passes for which it waits."""

    tokens: float
    ms: float
    passes: int = 0

    @property
    def per_ms(self) -> float:
        return self.tokens / self.ms


@dataclass(slots=True)
class Acceptance:
    """Of the first candidate at each step, as far as steps were reached.

    reached, accepted  steps; promised: the sum of the chances that candidates were given
    """

    reached: float = PRIOR
    accepted: float = PRIOR * AGREEMENT
    promised: float = PRIOR * AGREEMENT

    @property
    def rate(self) -> float:
        """Chance that the next candidate is accepted."""
        return self.accepted / self.reached

    @property
    def discount(self) -> float:
        """What a candidate's chance is multiplied by, and each one's behind it once more."""
        return min(1.0, self.accepted / self.promised)

    def observe(self, chances: Sequence[float], agreed: int) -> None:
        if chances:
            fade = min(1.0, MEMORY / (self.reached + len(chances)))
            self.reached = (self.reached + len(chances)) * fade
            self.accepted = (self.accepted + agreed) * fade
            self.promised = (self.promised + sum(chances)) * fade

    def of_new_text(self) -> Acceptance:
        """What a text of the same kind begins with."""
        count = min(self.reached, ALIKE)
        share = count / self.reached
        return Acceptance(count, share * self.accepted, share * self.promised)


@dataclass(slots=True)
class Supply:
    """What the draft has ready for a pass.

    found  [MOST_CHOSEN] share of the passes that find at least 1, 2, ... candidates
    count  passes that showed it; what was there before counts for `DOUBTED`
    """

    found: list[float] = field(default_factory=lambda: [1.0] * READY + [0.0] * UNREADY)
    count: float = DOUBTED

    def observe(self, drafted: Sequence[int]) -> None:
        """drafted  [sessions] candidates that a pass found"""
        self.count = min(self.count + 1.0, SUPPLY_MEMORY)
        for place, share in enumerate(self.found):
            now = sum(each > place for each in drafted) / len(drafted)
            self.found[place] = share + (now - share) / self.count

    def doubt(self) -> None:
        """The draft may have changed since."""
        self.count = DOUBTED


def chain_tokens(rows: float, chance: float) -> float:
    """Expected tokens of a chain of `rows` - 1 candidates behind the last committed token, each
    accepted with `chance`: (1 - chance^rows) / (1 - chance)."""
    return float(rows) if chance >= 1.0 else float((1.0 - chance**rows) / (1.0 - chance))


def best_rows(costs_ms: Mapping[int, float]) -> int:
    """Rows that a session begins with, if it has the passes to itself."""
    curve = CostCurve(costs_ms)
    return max(curve.choices, key=lambda rows: chain_tokens(rows, AGREEMENT) / curve.pass_ms(rows))


class Cost(Protocol):
    """`PassCosts.ms`."""

    def __call__(self, rows: int, sessions: int, *, beside: bool) -> float: ...


def chains(
    cost: Cost,
    rows: Sequence[int],
    chances: Sequence[float],
    found: Sequence[float] | None = None,
    *,
    beside: bool = False,
) -> Iterator[Rate]:
    """Of sessions that each verify a chain.

    rows     of each session at most, ascending: one rate for each number
    chances  [sessions] that a candidate is accepted
    found    share of the passes that find at least 1, 2, ... candidates; None: all do
    """
    count = len(chances)
    tokens, mean_rows, deep, depth = float(count), float(count), list(chances), 0
    for most in rows:
        while depth < most - 1:
            share = 1.0 if found is None else found[depth]
            tokens += share * sum(deep)
            mean_rows += share * count
            deep = [each * chance for each, chance in zip(deep, chances, strict=True)]
            depth += 1
        yield Rate(tokens, cost(ceil(mean_rows), count, beside=beside))


def turns(
    cost: Cost, rows: Sequence[int], chance: float, draft_ms: float, in_time: float
) -> Iterator[Rate]:
    """Of one session that fills these numbers of rows with passes of the draft; in so many of its
    turns the draft makes them in time."""
    for each in rows:
        ms = (each - 1) * draft_ms + cost(each, 1, beside=False)
        yield Rate(1.0 + in_time * (chain_tokens(each, chance) - 1.0), ms, each - 1)

"""The ways in which a pass may go, and what each should give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from card.engines.row_costs import CostCurve

AGREEMENT = 0.6
"""Share of candidates that are accepted before any was seen: what ordinary pairs reach on chats."""
PRIOR = 4.0
"""Candidates that this counts for."""
MEMORY = 64.0
"""Candidates that are remembered: where half are accepted, their mean is uncertain by 6 %."""


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
        share = PRIOR / self.reached
        return Acceptance(PRIOR, share * self.accepted, share * self.promised)


def chain_tokens(rows: float, chance: float) -> float:
    """Expected tokens of a chain of `rows` - 1 candidates behind the last committed token, each
    accepted with `chance`: (1 - chance^rows) / (1 - chance)."""
    return float(rows) if chance >= 1.0 else float((1.0 - chance**rows) / (1.0 - chance))


def best_rows(costs_ms: Mapping[int, float]) -> int:
    """Rows that a session begins with, if it has the passes to itself."""
    curve = CostCurve(costs_ms)
    return max(curve.choices, key=lambda rows: chain_tokens(rows, AGREEMENT) / curve.pass_ms(rows))


class Cost(Protocol):
    """`PassCosts.ms` or `hoped_ms`."""

    def __call__(self, rows: int, sessions: int, *, beside: bool) -> float: ...


def chains(
    cost: Cost, rows: Sequence[int], chances: Sequence[float], *, beside: bool
) -> Iterator[Rate]:
    """Of sessions that each verify a chain.

    rows     of each session: one rate for each number
    chances  [sessions] that a candidate is accepted
    """
    count = len(chances)
    for each in rows:
        tokens = sum(chain_tokens(each, chance) for chance in chances)
        yield Rate(tokens, cost(each * count, count, beside=beside))


def turns(
    cost: Cost, most: int, chance: float, draft_ms: float, delivered: float
) -> Iterator[Rate]:
    """Of one session that waits for up to `most` passes of the draft, of which this share gives a
    candidate."""
    for passes in range(1, most + 1):
        ms = passes * draft_ms + cost(1 + passes, 1, beside=False)
        yield Rate(chain_tokens(1 + delivered * passes, chance), ms, passes)

"""Which levels of drafts pay, and how long their parcels are (HSD, arXiv 2510.19705).

A level hands parcels of T tokens to the next one, which reviews each in one pass. A level that gets
tokens at t ms each, pays c(T + 1) ms for a pass over so many rows, and agrees with a token with
probability α, passes (1 - α^(T+1)) / (1 - α) tokens a parcel: those before the first that it would
not choose, and one of its own. So its tokens cost (T t + c(T + 1)) (1 - α) / (1 - α^(T+1)) ms each,
which grows with t: the cheapest way to every level leads through the cheapest way to a level below.
So of every choice of levels the parcels are found from the bottom up, each for itself.

As in the paper, agreement at one token is taken for independent of that at others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from card.engines.row_costs import pass_cost_ms

PARCELS = range(1, 17)
"""As many tokens as `speculation.parcel` and `speculation.lookahead` may be."""


@dataclass(frozen=True)
class Level:
    """Something that writes tokens.

    costs_ms  milliseconds of a pass by its rows; empty: it costs nothing
    """

    name: str
    costs_ms: Mapping[int, float]

    def pass_ms(self, rows: int) -> float:
        return pass_cost_ms(self.costs_ms, rows) if self.costs_ms else 0.0


@dataclass(frozen=True)
class Ladder:
    """Levels from the cheapest to the one whose tokens are wanted.

    parcels       tokens that each but the last hands to the next
    ms_per_token  of the last
    """

    levels: tuple[str, ...]
    parcels: tuple[int, ...]
    ms_per_token: float


Agreements = Mapping[tuple[str, str], float]
"""Share of the tokens that a level (second) would choose as one below it (first) did."""


def tokens_of_a_parcel(agreement: float, parcel: int) -> float:
    """That pass, with the reviewer's own."""
    return sum(agreement**place for place in range(parcel + 1))


def every_ladder(
    levels: Sequence[Level],
    agreements: Agreements,
    parcels: Sequence[int] = PARCELS,
    *,
    at_once: bool = False,
) -> list[Ladder]:
    """The shortest path through every choice of levels below the last one, the shortest of all
    first. `levels` are ordered from the cheapest on.

    at_once  the last level computes while the one below does: the longer of both counts
    """
    *below, last = levels
    ladders = []
    for count in range(len(below) + 1):
        for chosen in combinations(below, count):
            ladders.append(_whole([*chosen, last], agreements, parcels, at_once=at_once))
    return sorted(ladders, key=_ms)


def _reviewed(
    below: Ladder, level: Level, agreements: Agreements, parcels: Sequence[int], *, at_once: bool
) -> Ladder:
    """The best parcels of `below` for this level."""
    agreement = agreements[below.levels[-1], level.name]

    def ways() -> Iterable[Ladder]:
        for parcel in parcels:
            drafting, pass_ms = parcel * below.ms_per_token, level.pass_ms(parcel + 1)
            ms = max(drafting, pass_ms) if at_once else drafting + pass_ms
            yield Ladder(
                (*below.levels, level.name),
                (*below.parcels, parcel),
                ms / tokens_of_a_parcel(agreement, parcel),
            )

    return min(ways(), key=_ms)


def _whole(
    levels: Sequence[Level], agreements: Agreements, parcels: Sequence[int], *, at_once: bool
) -> Ladder:
    """The best parcels of these levels, all of which are used."""
    first, *others = levels
    ladder = Ladder((first.name,), (), first.pass_ms(1))
    for level in others:
        last = level is levels[-1]
        ladder = _reviewed(ladder, level, agreements, parcels, at_once=at_once and last)
    return ladder


def _ms(ladder: Ladder) -> float:
    return ladder.ms_per_token

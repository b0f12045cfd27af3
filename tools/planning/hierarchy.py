"""Which levels of drafts pay, and how long their parcels are (HSD, arXiv 2510.19705).

A level hands parcels of T tokens to the next one, which reviews each in one pass. A level that gets
tokens at t ms each, pays c(T + 1) ms for a pass over so many rows, and agrees with a token with
probability α, passes (1 - α^(T+1)) / (1 - α) tokens a parcel: those before the first that it would
not choose, and one of its own. So its tokens cost (T t + c(T + 1)) (1 - α) / (1 - α^(T+1)) ms each,
which grows with t: the cheapest way to every level leads through the cheapest way to a level below.
So of every choice of levels the parcels are found from the bottom up, each for itself.

The paper's levels take turns. Where the target computes while the draft does, a refusal still costs
the draft's time: what it wrote meanwhile is wrong. So there the tokens and milliseconds between two
refusals are counted, pass by pass.

As in the paper, agreement at one token is taken for independent of that at others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from card.engines.row_costs import pass_cost_ms
from card.speculation.control.costs import CONTENTION
from card.speculation.pacing import Pacing

PARCELS = range(1, 17)
"""As many tokens as `speculation.parcel` and `speculation.ngram_tokens` may be."""


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


Way = Callable[[float, Level, float, int], float]
"""Milliseconds of a token of a level: what a token of the level below takes, the level, how often
it agrees, and tokens of a parcel."""


def in_turns(below_ms: float, level: Level, agreement: float, parcel: int) -> float:
    """The level waits for each parcel."""
    ms = parcel * below_ms + level.pass_ms(parcel + 1)
    return ms / tokens_of_a_parcel(agreement, parcel)


def in_rounds(below_ms: float, level: Level, agreement: float, parcel: int) -> float:
    """While the level reviews a parcel, the level below writes the next one (PEARL). Behind a
    refusal a round gives the level's own token, for there is nothing to review."""
    if not below_ms:
        return in_turns(below_ms, level, agreement, parcel)
    agreement = min(agreement, _ALL_BUT_SURE)
    drafting = parcel * below_ms
    goes_on = agreement / (1.0 - agreement**parcel)
    tokens = 1.0 + goes_on * tokens_of_a_parcel(agreement, parcel - 1)
    first, others = (max(drafting, CONTENTION * level.pass_ms(rows)) for rows in (1, parcel))
    return (first + goes_on * others) / tokens


def nobody_waits(below_ms: float, level: Level, agreement: float, parcel: int) -> float:
    """The level reviews what there is, a parcel at most, and the level below writes on (CARD, with
    a chain)."""
    if not below_ms:
        return in_turns(below_ms, level, agreement, parcel)
    agreement = min(agreement, _ALL_BUT_SURE)
    ahead, chance, tokens, ms = 0, 1.0, 0.0, 0.0
    while ahead >= 0 and chance > _RARE:
        reviewed = min(parcel, ahead)
        pass_ms = CONTENTION * level.pass_ms(reviewed + 1)
        tokens += chance * tokens_of_a_parcel(agreement, reviewed)
        ms += chance * pass_ms
        # All of it was right, and so was the token that stands where the level wrote its own. A
        # negative number: there is none yet, and what the level below computes comes too late.
        ahead = min(MOST_AHEAD, ahead + int(pass_ms / below_ms)) - reviewed - 1
        chance *= agreement ** (reviewed + 1)
    return ms / tokens


MOST_AHEAD = 32
"""Tokens that a draft runs ahead: the default of `speculation.depth`."""
_ALL_BUT_SURE, _RARE = 0.999, 1e-6


def way_of(pacing: Pacing) -> Way:
    """How the target and the drafts share the time."""
    if not pacing.parallel:
        return in_turns
    return in_rounds if pacing.waits else nobody_waits


def every_ladder(
    levels: Sequence[Level],
    agreements: Agreements,
    parcels: Sequence[int] = PARCELS,
    way: Way = in_turns,
) -> list[Ladder]:
    """The shortest path through every choice of levels below the last one, the shortest of all
    first. `levels` are ordered from the cheapest on.

    way  of the last level and the one below; those below take turns
    """
    *below, last = levels
    ladders = []
    for count in range(len(below) + 1):
        for chosen in combinations(below, count):
            ladders.append(_whole([*chosen, last], agreements, parcels, way))
    return sorted(ladders, key=_ms)


def _whole(
    levels: Sequence[Level], agreements: Agreements, parcels: Sequence[int], last_way: Way
) -> Ladder:
    """The best parcels of these levels, all of which are used."""
    first, *others = levels
    ladder = Ladder((first.name,), (), first.pass_ms(1))
    for level in others:
        way = last_way if level is levels[-1] else in_turns
        agreement = agreements[ladder.levels[-1], level.name]
        ladder = min(
            (
                Ladder(
                    (*ladder.levels, level.name),
                    (*ladder.parcels, parcel),
                    way(ladder.ms_per_token, level, agreement, parcel),
                )
                for parcel in parcels
            ),
            key=_ms,
        )
    return ladder


def _ms(ladder: Ladder) -> float:
    return ladder.ms_per_token

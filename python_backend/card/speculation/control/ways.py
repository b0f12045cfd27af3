"""The ways in which a pass may go, and which of them a kind of load takes.

The way in use has a price: milliseconds a token. Now and then another way is tried: each pass is
charged its time and credited its tokens at that price (a sequential test, Wald 1945). A trial that
has lost the time of `BOUND` plain passes ends, and delays the next; one that has gained twice as
much replaces the way in use, which is tried again soon: texts differ more than ways do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

MEMORY = 64.0
"""Passes of which a price is the mean, and candidates of which an acceptance is: both are exact to
7 %, as a pass gives one to three tokens and acceptance lies around one half."""
FADE = 1.0 - 1.0 / MEMORY
AGREEMENT, PRIOR = 0.6, 4.0
"""Acceptance before any candidate was seen, what ordinary pairs reach on chats, and the number of
candidates that it counts for."""
BOUND = 2.0
"""Plain passes that a trial may lose: 2 % of a first text of 100 tokens. A trial wins by twice as
many, which cost nothing. A settled way with a draft may lose twice as many of its own."""
FIRST_GAP, GAP_GROWTH, LONGEST_GAP, SECOND_LOOK = 64.0, 1.5, 1024.0, 16.0
"""Passes until the first trial; factor by which a trial that lost delays the next; most passes
between two: a draft that has become good is found within some ten seconds; passes from a trial that
won to that of the way that it replaced: some thirty tokens, so mostly of the same text."""


class Way(Enum):
    """ALONE   the draft rests; n-grams propose, and where none is worth its row nothing does
    TURNS   the target waits until the draft has had its turn
    BESIDE  the draft works while the target does
    """

    ALONE = "alone"
    TURNS = "turns"
    BESIDE = "beside"


@dataclass(slots=True)
class Acceptance:
    """Of the first candidate at each step, as far as steps were reached.

    reached, accepted  steps; promised: the sum of the chances that candidates were given
    """

    reached: float = PRIOR
    accepted: float = PRIOR * AGREEMENT
    promised: float = PRIOR * AGREEMENT

    @property
    def discount(self) -> float:
        """What a candidate's chance is multiplied by, and each one's behind it once more."""
        return min(1.0, self.accepted / self.promised)

    def observe(self, chances: Sequence[float], agreed: int) -> None:
        fade = min(1.0, MEMORY / (self.reached + len(chances)))
        self.reached = (self.reached + len(chances)) * fade
        self.accepted = (self.accepted + agreed) * fade
        self.promised = (self.promised + sum(chances)) * fade


@dataclass(slots=True)
class Choice:
    """The way of a kind of load.

    settled, way  the way that is cheapest, and the one in use: another one while it is tried
    agreement     of the draft's candidates
    ms, tokens    of the latest passes of `settled`
    order         of the ways that are open the first one is tried next
    due, gap      passes until the next trial, and from the last one to it
    lost_ms       of the trial; of a settled way with a draft: what it has lost to plain decoding
    """

    settled: Way
    way: Way
    agreement: Acceptance = field(default_factory=Acceptance)
    ms: float = 0.0
    tokens: float = 0.0
    order: list[Way] = field(default_factory=lambda: [Way.TURNS, Way.BESIDE, Way.ALONE])
    due: float = FIRST_GAP
    gap: float = FIRST_GAP
    lost_ms: float = 0.0

    @property
    def tries(self) -> bool:
        return self.way is not self.settled

    def choose(self, ways: Collection[Way]) -> None:
        """Leave a way that is not open, begin a trial that is due."""
        if self.settled not in ways:
            self._settle(Way.ALONE)
        if self.way not in ways:
            self.way = self.settled
        others = [way for way in self.order if way in ways and way is not self.way]
        if others and self.due <= 0 and not self.tries:
            self.way, self.lost_ms = others[0], 0.0
            self.order.sort(key=lambda way: way is self.way)

    def learn(self, tokens: int, ms: float, plain_ms: float, sessions: int) -> None:
        """A pass took so long. A plain one takes `plain_ms` for a token of each session."""
        if self.tries:
            self.lost_ms += ms - tokens * self.ms / self.tokens
            if self.lost_ms < -2 * BOUND * plain_ms:
                self.order.sort(key=lambda way: way is not self.settled)
                self._settle(self.way)
                self.due = SECOND_LOOK
            elif self.lost_ms > BOUND * plain_ms:
                self.way, self.lost_ms = self.settled, 0.0
                self.due = self.gap = min(self.gap * GAP_GROWTH, LONGEST_GAP)
            return
        self.due -= 1
        self.ms, self.tokens = self.ms * FADE + ms, self.tokens * FADE + tokens
        if self.way is not Way.ALONE:
            self.lost_ms = max(0.0, self.lost_ms + ms - tokens * plain_ms / sessions)
            if self.lost_ms > 2 * BOUND * max(ms, plain_ms):
                self._settle(Way.ALONE)

    def _settle(self, way: Way) -> None:
        self.way = self.settled = way
        self.ms = self.tokens = self.lost_ms = 0.0
        self.due = self.gap = FIRST_GAP

"""What pays is measured: each kind of load goes the way whose tokens took the least time, with the
rows that pay. It begins `ALONE`, or `BESIDE` a draft that has its own device.

**Ways.** The way in use has a price: milliseconds a token. From time to time another way is tried:
each pass is charged its time and credited its tokens at that price (a sequential test, Wald 1945).
A trial that has lost the time of `BOUND` plain passes ends, and delays the next. A trial that has
gained twice as much replaces the way in use, which is tried again soon, because texts differ more
than ways do.

**Costs.** `costs` says what passes take. So that rows which load believed too dear are seen, a few
passes verify some more candidates than seem to pay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, partial
from typing import ClassVar

from card.cache import LEAST_CHANCE, Candidates
from card.engines.interface import CostCurve, chain_tokens
from card.speculation.acceptance import Outcome
from card.speculation.control.costs import TRIED_ROWS, PassCosts
from card.speculation.control.interface import ControlConfig, ControlledSession, Share, StepPlan

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


PROBE_GAIN = 0.5
"""Tokens that candidates of unknown cost are expected to gain: they pay for half a pass."""
WAITS = 4
"""Turns whose mean says how long the target waits for a pass of the draft."""


class Measured:
    """By measured costs, acceptance and time."""

    chooses_rows: ClassVar[bool] = True

    def __init__(self, config: ControlConfig) -> None:
        self._curve = CostCurve(config.costs_ms)
        self._costs = PassCosts(self._curve, config.shares)
        self._first = Way.BESIDE if config.apart else Way.ALONE
        self._ngram_tokens = config.ngram_tokens
        self._kinds: dict[tuple[int, ...], Choice] = {}
        self._texts: dict[int, tuple[Acceptance, Acceptance]] = {}
        """Of the draft's candidates and of n-grams, by the session's number."""
        self._draft_ms, self._waited, self._awaited = 0.0, 0, 0

    def plan(
        self,
        sessions: Sequence[ControlledSession],
        *,
        draft_lives: bool,
        draft_pass_ms: float = 0.0,
        reading: Sequence[ControlledSession] = (),
        most_rows: int | None = None,
    ) -> StepPlan:
        self._draft_ms = self._draft_ms or draft_pass_ms
        key = _kind_of([*sessions, *reading])
        kind = self._kinds.setdefault(key, Choice(self._first, self._first))
        for session in (*sessions, *reading):
            self._texts.setdefault(session.number, (replace(kind.agreement), Acceptance()))
        if not reading and any(session.adapts and session.drafts for session in sessions):
            in_turns = len(sessions) == 1 and draft_pass_ms > 0
            with_draft = [Way.BESIDE, Way.TURNS] if in_turns else [Way.BESIDE]
            kind.choose([Way.ALONE, *(with_draft if draft_lives else ())])
        # A prompt is read on all cores: its first token does not wait for the drafts of others.
        rests = kind.way is Way.ALONE or (bool(reading) and self._first is Way.ALONE)
        least = cache(partial(self._least_chance, len(sessions)))
        shares = []
        for session in sessions:
            works = session.drafts and draft_lives and not (rests and session.adapts)
            shares.append(self._share(session, kind.way, least, works=works))
        self._waited, self._awaited = self._awaited, max((one.awaited for one in shares), default=0)
        return StepPlan(shares, most_rows, key, prepares=kind.way is not Way.ALONE)

    def trim(
        self,
        plan: StepPlan,
        sessions: Sequence[ControlledSession],
        found: Sequence[Candidates],
        drafted: Sequence[int],
        *,
        beside: bool,
    ) -> list[int]:
        """The likeliest candidates of all, as many as give most tokens per millisecond."""
        counts = [0] * len(found)
        if not any(map(len, found)):
            return counts
        worth = sorted(
            (-chance, place, index)
            for index, session in enumerate(sessions)
            for place, chance in enumerate(self._worth(session, found[index], drafted[index]))
        )
        chances, ms = [-chance for chance, _, _ in worth], self._costs.ms
        best = self._curve.best_rows(chances, len(found), lambda rows: ms(rows, beside=beside))
        promises = sum(chances[best : best + TRIED_ROWS]) >= PROBE_GAIN
        if plan.most_rows is not None:  # prompts are read beside: its time says nothing of rows
            best = min(best, max(0, plan.most_rows - len(found)))
        elif self._kinds[plan.kind].tries:
            best = max(best, TRIED_ROWS)
        elif promises and not self._costs.knows_more_than(len(found) + best, beside=beside):
            best += TRIED_ROWS
        for _, _, index in worth[:best]:
            counts[index] += 1
        return counts

    def observe(
        self,
        plan: StepPlan,
        sessions: Sequence[ControlledSession],
        outcomes: Sequence[Outcome],
        seconds: float | None,
        waited_s: float = 0.0,
        *,
        beside: bool,
    ) -> None:
        kind, count = self._kinds[plan.kind], len(sessions)
        for session, outcome in zip(sessions, outcomes, strict=True):
            draft, ngrams = self._texts[session.number]
            draft.observe(outcome.chances, outcome.agreed)
            ngrams.observe(outcome.ngram_chances, outcome.ngram_agreed)
            if session.drafts and not session.is_remote:
                kind.agreement.observe(outcome.chances, outcome.agreed)
        if seconds is None:
            return
        rows = sum(1 + outcome.verified for outcome in outcomes)
        ms = self._costs.learn(rows, 1e3 * seconds, beside=beside) + 1e3 * waited_s
        if self._waited:
            self._draft_ms += (1e3 * waited_s / self._waited - self._draft_ms) / WAITS
        if any(session.adapts and session.drafts for session in sessions):
            tokens = count + sum(outcome.accepted for outcome in outcomes)
            kind.learn(tokens, ms, self._costs.ms(count, beside=False), count)

    def forget(self, session: ControlledSession) -> None:
        self._texts.pop(session.number, None)

    def _worth(self, session: ControlledSession, found: Candidates, drafted: int) -> list[float]:
        """Chance of each candidate to be accepted, as such candidates were."""
        draft, ngrams = (seen.discount for seen in self._texts[session.number])
        return [
            chance * (draft if place < drafted else ngrams) ** (depth + 1)
            for place, (chance, depth) in enumerate(zip(found.chances, found.depths(), strict=True))
        ]

    def _share(
        self, session: ControlledSession, way: Way, least: Callable[[bool], float], *, works: bool
    ) -> Share:
        """least  `_least_chance` of the pass; works: the draft does so for this session"""
        if not session.queries:
            return Share(False, 1, 0)
        drafts, rows = works or session.is_remote, self._curve.choices[-1]
        in_turns = works and session.takes_turns and way is Way.TURNS
        beside = works and not (session.is_remote or in_turns)
        ngram_tokens = self._ngram_tokens if drafts else min(self._ngram_tokens, 1) * rows
        share = Share(drafts, rows, ngram_tokens, session.is_remote, least(beside))
        if not in_turns:
            return share
        # It waits for as many passes of the draft as give most tokens per millisecond.
        seen, choices = self._texts[session.number][0], self._curve.choices[1:]
        ms = {n: (n - 1) * self._draft_ms + self._costs.ms(n, beside=False) for n in choices}
        best = max(choices, key=lambda n: chain_tokens(n, seen.accepted / seen.reached) / ms[n])
        longest_ms = min(ms[best], BOUND * self._costs.ms(1, beside=False))
        return share._replace(awaited=best - 1, patience_s=1e-3 * longest_ms)

    def _least_chance(self, sharing: int, beside: bool) -> float:
        """What one more row of a pass costs, in tokens, by a few more rows and by many."""
        ms = partial(self._costs.ms, beside=beside)
        costs = [
            (ms(rows) / ms(sharing) - 1) * sharing / (rows - sharing)
            for rows in (sharing + TRIED_ROWS, 4 * sharing)
        ]
        if not self._costs.knows_more_than(sharing + TRIED_ROWS - 1, beside=beside):
            costs.append(PROBE_GAIN / TRIED_ROWS)
        return max(LEAST_CHANCE, min(costs))


def _kind_of(sessions: Sequence[ControlledSession]) -> tuple[int, int]:
    """Sessions that share passes are told apart by their number (2, 3 to 4, 5 to 8, ...), one alone
    by its temperature, in quarters up to 2."""
    parameters, size = sessions[0].parameters, (len(sessions) - 1).bit_length()
    is_hot = not (size or parameters.is_greedy)
    return size, round(4 * min(parameters.temperature, 2.0)) if is_hot else 0

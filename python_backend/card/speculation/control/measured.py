"""What pays is measured: a pass goes the way that gives most tokens per millisecond.

What a way should give follows from what its passes cost, how often candidates are accepted, and how
many the draft has ready.

A kind of load begins with the way that loses nothing: `ALONE`, or `BESIDE` a draft that has its own
device. Another way is probed once the time of a pass has been saved, `PROBE_SHARE` of all time; the
probe ends when it has lost more than was saved. Later texts begin with the best way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

from card.cache import LEAST_CHANCE, Candidates
from card.engines.row_costs import CostCurve
from card.speculation.control.costs import CONTENTION, PassCosts, size_of
from card.speculation.control.interface import (
    ControlConfig,
    ControlledSession,
    Outcome,
    Share,
    StepPlan,
)
from card.speculation.control.ways import MEMORY, Acceptance, Rate, Supply, Way, chains, turns

PROBE_SHARE = 0.015
"""Of all time, that probes may lose: with what it takes to change ways, less than 2 %."""
PROBE_PASSES = 8
"""Passes with candidates in which a way shows what it gives."""
PROBED_ROWS = 2
"""Candidates that a pass of a probe verifies at least: else what they cost is never seen."""
LONGEST_PROBE = 24
"""Passes until then: the draft reads the text first."""
TELLING = 2.0
"""Passes with candidates before which no probe is given up: the first says little."""
READING = 8
"""Passes in which a draft may read a text before its silence says that it gives nothing."""
WAITS = 4.0
"""Turns whose mean says how long the target waits for a pass of the draft."""
BETTER = 1.05
"""A way replaces another if it gives so much more: a change costs some passes."""


@dataclass(slots=True)
class _Kind:
    """Loads that are alike.

    way, settled  in use, and the one to return to: another one while `way` is probed
    agreement     of the draft's candidates; supply: how many it has ready, by way
    ngrams        what passes of `ALONE` gave against what hit rates promise: hits come in rows
    paying        ways that paid when they were probed last; what decoding alone gives is known
    queue         the other ways: the first one is probed next
    saved_ms      that probes may lose; lost_ms: what the one under way has lost
    probed        passes of the probe; drafted: those that had candidates
    silent        passes in a row of texts that never had a candidate: the draft still reads them
    """

    way: Way = Way.ALONE
    settled: Way = Way.ALONE
    agreement: Acceptance = field(default_factory=Acceptance)
    supply: dict[Way, Supply] = field(default_factory=lambda: {way: Supply() for way in Way})
    ngrams: float = 1.0
    paying: set[Way] = field(default_factory=lambda: {Way.ALONE})
    rates: dict[Way, Rate] = field(default_factory=dict)
    queue: list[Way] = field(default_factory=lambda: [Way.TURNS, Way.BESIDE])
    saved_ms: float = 0.0
    probed: int = 0
    drafted: int = 0
    lost_ms: float = 0.0
    silent: int = 0

    @property
    def probes(self) -> bool:
        return self.way is not self.settled

    def per_ms(self, way: Way) -> float:
        """Tokens that the way should give; 0: it is not open."""
        return self.rates[way].per_ms if way in self.rates else 0.0

    def choose(self) -> None:
        """Keep the way, take a better one, or probe the one that was not probed for longest, once
        the time of a pass is saved: what load believed of other ways has no say."""
        now = self.per_ms(self.way)
        best = max((way for way in Way if way in self.paying), key=self.per_ms)
        if best is not self.way and self.per_ms(best) > BETTER * now:
            self.way = self.settled = best
            self.supply[best].doubt()
            return
        for way in self.queue:
            if way is self.way or way not in self.rates:
                continue
            if self.saved_ms > self.rates[self.way].ms:
                self.way, self.probed, self.drafted, self.lost_ms = way, 0, 0, 0.0
                self.queue.remove(way)
                self.queue.append(way)
                self.supply[way].doubt()
            return

    def learn(
        self, tokens: int, drafted: Sequence[int], ms: float, *, reads: bool, awaited: int
    ) -> None:
        """A pass of the way in use gave and took so much.

        drafted  [sessions] candidates of the draft
        reads    no text had a candidate of the draft yet: it may still read them
        awaited  passes of the draft for which it waited
        """
        if self.way not in self.rates:
            return
        self.saved_ms = min(self.saved_ms + PROBE_SHARE * ms, PROBE_PASSES * ms)
        if self.way is Way.ALONE:
            self.ngrams *= 1.0 + (tokens / self.rates[self.way].tokens - 1.0) / MEMORY
            return
        self.drafted += any(drafted)
        self.silent = self.silent + 1 if reads and not any(drafted) else 0
        if not 0 < self.silent < READING and (self.way is Way.BESIDE or awaited):
            self.supply[self.way].observe(drafted)
        if self.probes:
            self._end_probe(ms - tokens / self.per_ms(self.settled))

    def _end_probe(self, lost_ms: float) -> None:
        """A pass of the probe lost so much: go on, take the way, or give it up."""
        self.lost_ms += lost_ms
        self.probed += 1
        goes_on = self.drafted < PROBE_PASSES and self.probed < LONGEST_PROBE
        if goes_on and (self.lost_ms < self.saved_ms or 0 < self.drafted < TELLING):
            return
        self.saved_ms -= max(0.0, self.lost_ms)
        whole = self.drafted >= PROBE_PASSES
        if whole and self.per_ms(self.way) > BETTER * self.per_ms(self.settled):
            self.settled = self.way
            self.paying.add(self.way)
        else:
            self.paying.discard(self.way)
            self.way = self.settled


@dataclass(slots=True)
class _Text:
    """Acceptance of the draft's candidates and of n-grams in a text.

    awaited, waited  passes of the draft for which its next pass, and the one under way, wait
    drafted          it had a candidate of the draft
    """

    draft: Acceptance
    ngrams: Acceptance = field(default_factory=Acceptance)
    awaited: int = 0
    waited: int = 0
    drafted: bool = False


class Measured:
    """By measured costs, acceptance and time."""

    chooses_rows: ClassVar[bool] = True

    def __init__(self, config: ControlConfig) -> None:
        self._curve = CostCurve(config.costs_ms)
        contention = 1.0 if config.apart else CONTENTION
        self._costs = PassCosts(self._curve, {False: config.alone_share, True: contention})
        self._first = Way.BESIDE if config.apart else Way.ALONE
        self._ngram_tokens = config.ngram_tokens
        self._kinds: dict[tuple[int, ...], _Kind] = {}
        self._texts: dict[int, _Text] = {}
        self._draft_pass_ms = 0.0
        self._wait_factor, self._waited_ms = 1.0, inf

    def plan(
        self,
        sessions: Sequence[ControlledSession],
        *,
        draft_lives: bool,
        draft_pass_ms: float = 0.0,
        reading: Sequence[ControlledSession] = (),
        most_rows: int | None = None,
    ) -> StepPlan:
        self._draft_pass_ms = draft_pass_ms
        key = _kind_of([*sessions, *reading])
        kind = self._kinds.setdefault(key, _Kind(self._first, self._first))
        for session in (*sessions, *reading):
            if session.number not in self._texts:
                self._texts[session.number] = _Text(kind.agreement.of_new_text())
        adapting = [session for session in sessions if session.adapts and session.drafts]
        if adapting and not reading:
            kind.rates = self._rates(kind, adapting, draft_lives=draft_lives)
            if kind.way not in kind.rates:
                kind.way = kind.settled = Way.ALONE
            if not kind.probes:
                kind.choose()
        # A prompt is read on all cores: its first token does not wait for the drafts of others.
        rests = kind.way is Way.ALONE or (bool(reading) and self._first is Way.ALONE)
        shares = [
            self._share(each, kind, len(sessions), lives=draft_lives, rests=rests)
            for each in sessions
        ]
        for session, share in zip(sessions, shares, strict=True):
            text = self._texts[session.number]
            text.waited, text.awaited = text.awaited, share.awaited
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
            for index, (session, candidates) in enumerate(zip(sessions, found, strict=True))
            for place, chance in enumerate(
                _chances(self._texts[session.number], candidates, drafted[index])
            )
        )
        best = self._costs.best_rows([-one[0] for one in worth], len(found), beside=beside)
        if self._kinds[plan.kind].probes:
            best = max(best, PROBED_ROWS)
        if plan.most_rows is not None:
            best = min(best, max(0, plan.most_rows - len(found)))
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
            text = self._texts[session.number]
            text.draft.observe(outcome.chances, outcome.agreed)
            text.ngrams.observe(outcome.ngram_chances, outcome.ngram_agreed)
            text.drafted = text.drafted or outcome.drafted > 0
            if session.drafts and not session.is_remote:
                kind.agreement.observe(outcome.chances, outcome.agreed)
        if seconds is None:
            return
        rows = sum(1 + outcome.verified for outcome in outcomes)
        ms = self._costs.learn(rows, count, 1e3 * seconds, beside=beside)
        waited = self._texts[sessions[0].number].waited
        if waited and self._draft_ms:
            ms += 1e3 * waited_s
            self._learn_wait(1e3 * waited_s / max(1, min(waited, outcomes[0].drafted)))
        if any(session.adapts and session.drafts for session in sessions):
            tokens = count + sum(outcome.accepted for outcome in outcomes)
            drafted = [outcome.drafted for outcome in outcomes]
            reads = not any(self._texts[session.number].drafted for session in sessions)
            kind.learn(tokens, drafted, ms, reads=reads, awaited=waited)

    def forget(self, session: ControlledSession) -> None:
        self._texts.pop(session.number, None)

    def _learn_wait(self, ms: float) -> None:
        """The target waited so long for each pass of the draft. One slow turn may have been
        interrupted; two in a row tell of a slow draft."""
        ms, self._waited_ms = min(ms, self._waited_ms), ms
        self._wait_factor *= 1.0 + (ms / self._draft_ms - 1.0) / WAITS

    @property
    def _draft_ms(self) -> float:
        """For which the target waits until the draft has made a pass."""
        return self._draft_pass_ms * self._wait_factor

    def _rates(
        self, kind: _Kind, sessions: Sequence[ControlledSession], *, draft_lives: bool
    ) -> dict[Way, Rate]:
        """What each open way should give these sessions."""
        cost, rows = self._costs.ms, self._curve.choices
        hits = [session.proposer.hit_rate for session in sessions]
        open_ways = {Way.ALONE: chains(cost, rows if self._ngram_tokens else rows[:1], hits)}
        if draft_lives:
            chances = [self._texts[session.number].draft.rate for session in sessions]
            supply = kind.supply[Way.BESIDE].found
            open_ways[Way.BESIDE] = chains(cost, rows, chances, supply, beside=True)
            if len(sessions) == 1 and sessions[0].takes_turns and self._draft_pass_ms:
                in_time = kind.supply[Way.TURNS].found[0]
                open_ways[Way.TURNS] = turns(cost, rows[1:], chances[0], self._draft_ms, in_time)
        best = {way: max(rates, key=lambda rate: rate.per_ms) for way, rates in open_ways.items()}
        alone = best[Way.ALONE]
        return best | {Way.ALONE: alone._replace(tokens=alone.tokens * kind.ngrams)}

    def _share(
        self, session: ControlledSession, kind: _Kind, sharing: int, *, lives: bool, rests: bool
    ) -> Share:
        if not session.queries:
            return Share(False, 1, 0)
        works = lives and not (rests and session.adapts)
        drafts = session.drafts and (session.is_remote or works)
        in_turns = drafts and session.takes_turns and kind.way is Way.TURNS
        beside = drafts and not (session.is_remote or in_turns)
        rows, ngram_tokens = self._curve.choices[-1], self._ngram_tokens
        if ngram_tokens and not drafts:
            ngram_tokens = rows
        least = max(LEAST_CHANCE, self._costs.least_chance(sharing, beside=beside))
        share = Share(drafts, rows, ngram_tokens, session.is_remote, least)
        if not in_turns:
            return share
        rate = kind.rates[Way.TURNS]
        return share._replace(awaited=rate.passes, patience_s=1e-3 * rate.ms)


def _chances(text: _Text, candidates: Candidates, drafted: int) -> list[float]:
    """Of each candidate to be accepted, as such candidates were."""
    depths = candidates.depths()
    deepest = max(depths[:drafted], default=-1) + 1
    draft, ngrams = text.draft.discount, text.ngrams.discount
    return [
        chance * draft ** min(depth + 1, deepest) * ngrams ** max(0, depth + 1 - deepest)
        for chance, depth in zip(candidates.chances, depths, strict=True)
    ]


def _kind_of(sessions: Sequence[ControlledSession]) -> tuple[int, ...]:
    """Sessions that share passes are told apart by their number; one alone by whether it may take
    turns, how hot it is sampled, in quarters up to 2, and whether penalties change its tokens: the
    draft knows none."""
    if len(sessions) > 1:
        return (size_of(len(sessions)),)
    (session,) = sessions
    parameters = session.parameters
    heat = 0.0 if parameters.is_greedy else min(parameters.temperature, 2.0)
    return 0, int(session.takes_turns), round(4 * heat), int(parameters.penalises)

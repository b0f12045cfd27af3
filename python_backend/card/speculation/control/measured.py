"""What pays is measured: the draft works while it gains time, and a pass has as many rows as pay.

The controller knows three things, and each follows what happened of late:

- what a pass costs by its rows and sessions, with the draft at work and without (`PassCosts`)
- how often a session's candidates are accepted, against how often they promised to be
- how much time the draft has gained or lost (`Trial`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

from card.cache import LEAST_CHANCE, Candidates
from card.engines.row_costs import CostCurve
from card.sampling import SamplingParameters
from card.speculation.control.accepted import AGREEMENT, PRIOR, Acceptance
from card.speculation.control.costs import CONTENTION, PassCosts, ideal_tokens, size_of
from card.speculation.control.fixed import UNMEASURED_ROWS
from card.speculation.control.interface import (
    ControlConfig,
    ControlledSession,
    Outcome,
    Plan,
    Share,
)
from card.speculation.control.trial import PAUSE, STOP, Trial

SOUGHT = 4
"""Candidates that sessions which share a pass are asked for, for each row that it may have: where
one text is easy and another is not, the easy one takes the rows of both."""


def best_rows(costs_ms: Mapping[int, float]) -> int:
    """Rows of a pass that a session begins with, if it has the pass to itself."""
    return Measured(ControlConfig(costs_ms=costs_ms)).first_rows


@dataclass(slots=True)
class _Text:
    """What is known of one session.

    leans      it is decoded by n-grams alone for now
    surprised  the last pass rejected a candidate
    """

    acceptance: Acceptance = field(default_factory=Acceptance)
    leans: bool = False
    surprised: bool = False


class Measured:
    """By measured costs, acceptance and time. Without a cost curve the draft always works."""

    chooses_rows: ClassVar[bool] = True

    def __init__(self, config: ControlConfig) -> None:
        self._config = config
        costs_ms: Mapping[int, float] = config.costs_ms or {}
        self._curve = CostCurve(costs_ms)
        self._is_measured = bool(self._curve.choices)
        self._costs = PassCosts(self._curve, config.alone_share)
        self._texts: dict[int, _Text] = {}
        self._trials: dict[tuple[int, ...], Trial] = {}
        self._size = 0.0

    @property
    def first_rows(self) -> int:
        """Rows that gain most before anything is known of a draft."""
        return self._best_rows(AGREEMENT, 1)

    def plan(
        self,
        sessions: Sequence[ControlledSession],
        *,
        draft_lives: bool,
        reading: Sequence[ControlledSession] = (),
        most_rows: int | None = None,
    ) -> Plan:
        whole = [*sessions, *reading]
        self._count_sessions(len(whole))
        kind = self._kind(whole)
        new = [session for session in whole if session.number not in self._texts]
        self._texts |= {session.number: _Text() for session in new}
        if kind not in self._trials:
            self._trials[kind] = self._first_trial(len(whole))
        elif new:
            self._trials[kind].begin_text()
        trial = self._trials[kind]
        if not draft_lives:
            trial.await_draft()
        drafts = [
            session.is_remote or (draft_lives and (trial.drafts or not session.adapts))
            for session in sessions
        ]
        alone = all(
            session.adapts and not (works and session.drafts)
            for session, works in zip(sessions, drafts, strict=True)
        )
        if self._is_measured and sessions and alone:
            is_plain = self._costs.wants_plain(len(sessions))
            self._costs.count_planned(len(sessions))
            if is_plain:
                return Plan([Share(False, 1, 0) for _ in sessions], most_rows, kind, trial.drafts)

        @cache
        def least_chance(drafts: bool) -> float:
            return max(LEAST_CHANCE, self._costs.least_chance(len(sessions), alone=not drafts))

        shares = [
            self._share(session, len(sessions), most_rows, least_chance, drafts=works)
            for session, works in zip(sessions, drafts, strict=True)
        ]
        return Plan(shares, most_rows, kind, trial.drafts)

    def trim(
        self, plan: Plan, sessions: Sequence[ControlledSession], found: Sequence[Candidates]
    ) -> list[int]:
        """The likeliest candidates of all, as many as give most tokens per second of the pass."""
        if not (self._config.is_chain and any(map(len, found))):
            return [len(candidates) for candidates in found]
        worth = sorted(
            (
                -chance * self._texts[session.number].acceptance.discount ** (place + 1),
                place,
                index,
            )
            for index, (session, candidates) in enumerate(zip(sessions, found, strict=True))
            for place, chance in enumerate(candidates.chances)
        )
        best = self._costs.best_rows(
            [-entry[0] for entry in worth], len(found), alone=not plan.drafts
        )
        if plan.most_rows is not None:
            best = min(best, max(0, plan.most_rows - len(found)))
        counts = [0] * len(found)
        for _, _, index in worth[:best]:
            counts[index] += 1
        return counts

    def observe(
        self,
        plan: Plan,
        sessions: Sequence[ControlledSession],
        outcomes: Sequence[Outcome],
        seconds: float | None,
    ) -> None:
        alone, count = not plan.drafts, len(sessions)
        rows = sum(1 + outcome.verified for outcome in outcomes)
        taken_ms = 0.0
        if self._is_measured:
            taken_ms = self._costs.ms(rows, count, alone=alone)
            if seconds is not None:
                taken_ms = self._costs.learn(rows, count, seconds, alone=alone)
        for session, outcome in zip(sessions, outcomes, strict=True):
            text = self._texts[session.number]
            text.acceptance.observe(outcome)
            text.surprised = outcome.rejected
        # What others give says nothing about the draft, and their texts gain nothing by it.
        counted = [
            outcome if _is_drafted(session) else Outcome()
            for session, outcome in zip(sessions, outcomes, strict=True)
        ]
        if self._is_measured and any(session.adapts for session in sessions):
            self._account(plan, sessions, counted, taken_ms)

    def forget(self, session: ControlledSession) -> None:
        self._texts.pop(session.number, None)
        if not self._texts:
            self._size = 0.0

    # --- whether the draft works --------------------------------------------------------------

    def _count_sessions(self, sessions: int) -> None:
        """The number falls slowly, so that sessions which come and go leave it as it is."""
        self._size = max(sessions, self._size - (self._size - sessions) / PAUSE)

    def _kind(self, sessions: Sequence[ControlledSession]) -> tuple[int, ...]:
        """How many sessions share passes; one alone is told apart by how its tokens are chosen."""
        if (count := round(self._size)) > 1:
            return (size_of(count),)
        return (0, *_sampling_of(sessions[0].parameters))

    def _first_trial(self, sessions: int) -> Trial:
        """Passes without the draft come first, until their cost is known. Where the curve says that
        the draft cannot pay, it must earn its first trial."""
        if not self._is_measured:
            return Trial(drafts=True, debt=0.0)
        # The more sessions it works for, the fewer candidates it has for each.
        least = 1.0 if sessions == 1 else CONTENTION
        pays = self._gain(AGREEMENT, sessions, alone=False)[1] > least
        if pays and self._costs.knows_plain(sessions):
            return Trial(drafts=True, debt=0.0)
        return Trial(drafts=False, debt=0.0 if pays else STOP, pause=round(PRIOR))

    def _account(
        self,
        plan: Plan,
        sessions: Sequence[ControlledSession],
        outcomes: Sequence[Outcome],
        taken_ms: float,
    ) -> None:
        """Charge the pass to the trial, or let it pay a debt back."""
        trial, count = self._trials[plan.kind], len(outcomes)
        if not trial.drafts:
            trial.pay()
        elif plan.drafts:
            tokens = count + sum(outcome.accepted for outcome in outcomes)
            passes = taken_ms / self._costs.ms(count, count, alone=True)
            loss = passes - tokens / sum(self._by_ngrams(each, count) for each in sessions)
            with_candidates = sum(outcome.drafted > 0 for outcome in outcomes)
            trial.charge(loss, found=3 * with_candidates >= count)

    def _by_ngrams(self, session: ControlledSession, sharing: int) -> float:
        """Tokens that a session gains by n-grams alone, in the time of a pass without them."""
        proposer = session.proposer
        if not (self._config.ngram_tokens and _is_drafted(session) and proposer.propose([], 1)):
            return 1.0
        return self._gain(proposer.hit_rate, sharing, alone=True)[1]

    # --- rows ---------------------------------------------------------------------------------

    def _share(
        self,
        session: ControlledSession,
        sharing: int,
        most_rows: int | None,
        least_chance: Callable[[bool], float],
        *,
        drafts: bool,
    ) -> Share:
        if not session.queries:
            return Share(False, 1, 0)
        text, config, remote = self._texts[session.number], self._config, session.is_remote
        drafts = drafts and session.drafts
        if not config.is_chain:  # nothing is left out later
            rows = self._best_rows(text.acceptance.rate, sharing)
            if most_rows is not None:
                rows = min(rows, max(1, most_rows // sharing))
            return Share(drafts, rows, config.ngram_tokens, remote)
        if not self._is_measured:
            return Share(drafts, UNMEASURED_ROWS, config.ngram_tokens, remote)
        most = max(self._curve.choices)
        rows = max(2, min(most, SOUGHT * most // sharing))
        text.leans = session.adapts and self._repeats(session, text, sharing)
        ngram_tokens = rows if text.leans or not drafts else config.ngram_tokens
        ngram_tokens = ngram_tokens if config.ngram_tokens else 0
        drafts = drafts and not text.leans
        return Share(drafts, rows, ngram_tokens, remote, least_chance(drafts))

    def _repeats(self, session: ControlledSession, text: _Text, sharing: int) -> bool:
        """Whether n-gram proposals fill the rows that they are worth, and gain more than the draft
        does: a text that repeats itself needs no draft."""
        if not self._config.ngram_tokens or (text.leans and text.surprised):
            return False
        rows, gain = self._gain(session.proposer.hit_rate, sharing, alone=True)
        if gain <= self._gain(text.acceptance.rate, sharing, alone=False)[1]:
            return False
        return rows > 1 and len(session.proposer.propose([], rows - 1)) == rows - 1

    def _best_rows(self, agreement: float, sessions: int) -> int:
        if not self._is_measured:
            return UNMEASURED_ROWS
        return self._gain(agreement, sessions, alone=False)[0]

    def _gain(self, agreement: float, sessions: int, *, alone: bool) -> tuple[int, float]:
        """The best rows of each of `sessions` sessions, and tokens per second with them over those
        of decoding alone."""
        plain_ms = self._costs.ms(sessions, sessions, alone=True)
        return max(
            (
                (
                    rows,
                    ideal_tokens(rows, agreement)
                    * plain_ms
                    / self._costs.ms(rows * sessions, sessions, alone=alone),
                )
                for rows in self._curve.choices
            ),
            key=lambda found: found[1],
        )


def _is_drafted(session: ControlledSession) -> bool:
    """Whether the draft makes candidates for it: no device does, nor n-grams alone."""
    return session.drafts and not session.is_remote


def _sampling_of(parameters: SamplingParameters) -> tuple[int, int]:
    """How hot a text is sampled, in quarters up to 2, and whether penalties, of which the draft
    knows nothing, change its tokens."""
    heat = 0.0 if parameters.is_greedy else min(parameters.temperature, 2.0)
    return round(4 * heat), int(parameters.penalises)

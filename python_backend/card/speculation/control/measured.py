"""What pays is measured: each kind of load goes the way whose tokens took least time (`ways`), with
the rows that pay (`costs`). It begins `ALONE`, or `BESIDE` a draft that has its own device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from card.cache import LEAST_CHANCE, Candidates
from card.engines.row_costs import CostCurve, chain_tokens
from card.speculation.control.costs import PassCosts
from card.speculation.control.interface import (
    ControlConfig,
    ControlledSession,
    Outcome,
    Share,
    StepPlan,
)
from card.speculation.control.ways import BOUND, Acceptance, Choice, Way

TRIED_ROWS = 2
"""Candidates that a pass of a trial verifies at least: else what they cost is never seen."""
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
        shares = []
        for session in sessions:
            works = session.drafts and draft_lives and not (rests and session.adapts)
            shares.append(self._share(session, kind.way, len(sessions), works=works))
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
        if self._kinds[plan.kind].tries:
            best = max(best, TRIED_ROWS)
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

    def _share(self, session: ControlledSession, way: Way, sharing: int, *, works: bool) -> Share:
        """works  the draft does so for this session"""
        if not session.queries:
            return Share(False, 1, 0)
        drafts, rows = works or session.is_remote, self._curve.choices[-1]
        in_turns = works and session.takes_turns and way is Way.TURNS
        beside = works and not (session.is_remote or in_turns)
        ngram_tokens = self._ngram_tokens if drafts else min(self._ngram_tokens, 1) * rows
        one, four = (self._costs.ms(each * sharing, beside=beside) for each in (1, 4))
        least = max(LEAST_CHANCE, (four / one - 1) / 3)  # what each of three more rows costs
        share = Share(drafts, rows, ngram_tokens, session.is_remote, least)
        if not in_turns:
            return share
        # It waits for as many passes of the draft as give most tokens per millisecond.
        seen, choices = self._texts[session.number][0], self._curve.choices[1:]
        ms = {n: (n - 1) * self._draft_ms + self._costs.ms(n, beside=False) for n in choices}
        best = max(choices, key=lambda n: chain_tokens(n, seen.accepted / seen.reached) / ms[n])
        longest_ms = min(ms[best], BOUND * self._costs.ms(1, beside=False))
        return share._replace(awaited=best - 1, patience_s=1e-3 * longest_ms)


def _kind_of(sessions: Sequence[ControlledSession]) -> tuple[int, int]:
    """Sessions that share passes are told apart by their number (2, 3 to 4, 5 to 8, ...), one alone
    by its temperature, in quarters up to 2."""
    parameters, size = sessions[0].parameters, (len(sessions) - 1).bit_length()
    is_hot = not (size or parameters.is_greedy)
    return size, round(4 * min(parameters.temperature, 2.0)) if is_hot else 0

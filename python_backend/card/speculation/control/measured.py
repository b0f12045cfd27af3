"""What pays is measured: the draft works while it gains time, and a pass has as many rows as pay.

The controller knows four things, and each follows what happened of late:

- what a pass costs by its rows and sessions, with the draft at work and without (`PassCosts`)
- how often a session's candidates are accepted, against how often they promised to be
- how much time the draft has gained or lost (`Trial`)
- what it gains beside the target, and in turns with it (`Ways`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from card.cache import LEAST_CHANCE, Candidates
from card.engines.row_costs import CostCurve
from card.speculation.control.accepted import AGREEMENT, Acceptance
from card.speculation.control.costs import CONTENTION, PRIOR, PassCosts
from card.speculation.control.gains import Gains, Turns
from card.speculation.control.interface import (
    ControlConfig,
    ControlledSession,
    Outcome,
    Plan,
    Share,
)
from card.speculation.control.kinds import Kinds
from card.speculation.control.trial import STOP, Trial
from card.speculation.control.ways import Ways


def best_rows(costs_ms: Mapping[int, float]) -> int:
    """Rows of a pass that a session begins with, if it has the pass to itself."""
    curve = CostCurve(costs_ms)
    return Gains(curve, PassCosts(curve, 1.0)).of_chains(AGREEMENT, 1, alone=False)[0]


@dataclass(slots=True)
class _Text:
    """What is known of one session.

    leans      it is decoded by n-grams alone for now
    surprised  the last pass rejected a candidate
    awaited    passes of the draft for which the next pass waits
    waited     for which the pass under way did
    """

    acceptance: Acceptance = field(default_factory=Acceptance)
    leans: bool = False
    surprised: bool = False
    awaited: int = 0
    waited: int = 0


class Measured:
    """By measured costs, acceptance and time."""

    chooses_rows: ClassVar[bool] = True

    def __init__(self, config: ControlConfig) -> None:
        self._config = config
        self._curve = CostCurve(config.costs_ms)
        self._costs = PassCosts(self._curve, config.alone_share)
        self._gains = Gains(self._curve, self._costs)
        self._texts: dict[int, _Text] = {}
        self._trials: dict[tuple[int, ...], Trial] = {}
        self._ways: dict[tuple[int, ...], Ways] = {}
        self._draft_pass_ms = 0.0
        self._kinds = Kinds()

    def plan(
        self,
        sessions: Sequence[ControlledSession],
        *,
        draft_lives: bool,
        draft_pass_ms: float = 0.0,
        reading: Sequence[ControlledSession] = (),
        most_rows: int | None = None,
    ) -> Plan:
        whole = [*sessions, *reading]
        self._draft_pass_ms = draft_pass_ms
        kind = self._kinds.of(whole)
        new = [session.number for session in whole if session.number not in self._texts]
        for number in new:
            self._texts[number] = _Text()
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
        turns = None
        if len(sessions) == len(whole) == 1 and drafts[0]:
            turns = self._turns(sessions[0], self._ways.setdefault(kind, Ways()))
        shares = self._shares(sessions, drafts, turns)
        for session, share in zip(sessions, shares, strict=True):
            text = self._texts[session.number]
            text.waited, text.awaited = text.awaited, share.awaited
        return Plan(shares, most_rows, kind, trial.drafts)

    def trim(
        self, plan: Plan, sessions: Sequence[ControlledSession], found: Sequence[Candidates]
    ) -> list[int]:
        """The likeliest candidates of all, as many as give most tokens per second of the pass."""
        if not any(map(len, found)):
            return [0] * len(found)
        worth = sorted(
            (
                -chance * self._texts[session.number].acceptance.discount ** (depth + 1),
                place,
                index,
            )
            for index, (session, candidates) in enumerate(zip(sessions, found, strict=True))
            for place, (chance, depth) in enumerate(
                zip(candidates.chances, candidates.depths(), strict=True)
            )
        )
        best = self._costs.best_rows(
            [-entry[0] for entry in worth], len(found), alone=not plan.has_company
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
        waited_s: float = 0.0,
    ) -> None:
        alone, count = not plan.has_company, len(sessions)
        rows = sum(1 + outcome.verified for outcome in outcomes)
        if seconds is None:
            taken_ms = self._costs.ms(rows, count, alone=alone)
        else:
            taken_ms = self._costs.learn(rows, count, seconds, alone=alone)
        if waited := self._texts[sessions[0].number].waited:
            self._costs.learn_wait(1e3 * waited_s, waited, self._draft_pass_ms)
            taken_ms += 1e3 * waited_s
        for session, outcome in zip(sessions, outcomes, strict=True):
            text = self._texts[session.number]
            text.acceptance.observe(outcome)
            text.surprised = outcome.rejected
        if any(session.adapts for session in sessions):
            self._account(plan, sessions, outcomes, taken_ms)

    def forget(self, session: ControlledSession) -> None:
        self._texts.pop(session.number, None)
        if not self._texts:
            self._kinds = Kinds()

    # --- whether the draft works --------------------------------------------------------------

    def _first_trial(self, sessions: int) -> Trial:
        """Passes without the draft come first, until their cost is known. Where the curve says that
        the draft cannot pay, it must earn its first trial."""
        # The more sessions it works for, the fewer candidates it has for each.
        least = 1.0 if sessions == 1 else CONTENTION
        pays = self._gains.of_chains(AGREEMENT, sessions, alone=False)[1] > least
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
        """Charge the pass to the trial, or let it pay a debt back. One that waited for the draft
        is charged even if n-grams alone came of it."""
        trial, count = self._trials[plan.kind], len(outcomes)
        in_turns = self._texts[sessions[0].number].waited > 0
        if not trial.drafts:
            trial.pay()
        elif plan.drafts or in_turns:
            # What others give says nothing about the draft, and their texts gain nothing by it.
            outcomes = [
                outcome if _is_drafted(session) else Outcome()
                for session, outcome in zip(sessions, outcomes, strict=True)
            ]
            tokens = count + sum(outcome.accepted for outcome in outcomes)
            passes = taken_ms / self._costs.ms(count, count, alone=True)
            loss = passes - tokens / sum(self._by_ngrams(each, count) for each in sessions)
            with_candidates = sum(outcome.drafted > 0 for outcome in outcomes)
            trial.charge(loss, found=3 * with_candidates >= count)
            ways = self._ways.get(plan.kind)
            if ways is not None and not trial.drafts:
                ways.choose()
            elif (
                ways is not None
                and trial.found
                and ways.learn(outcomes, tokens, passes, in_turns=in_turns)
            ):
                trial.evidence = 0.0  # nothing was lost by the way that begins now

    def _turns(self, session: ControlledSession, ways: Ways) -> Turns | None:
        """Those that gain more than a draft beside the target."""
        if not (session.takes_turns and self._draft_pass_ms):
            return None
        agreement = ways.acceptance.rate
        turns = self._gains.of_turns(agreement, self._draft_pass_ms)
        ways.predict(self._gains.of_chains(agreement, 1, alone=False)[1], turns.gain)
        return turns if ways.in_turns else None

    def _by_ngrams(self, session: ControlledSession, sharing: int) -> float:
        """Tokens that a session gains by n-grams alone, in the time of a pass without them."""
        proposer = session.proposer
        if not (self._config.ngram_tokens and _is_drafted(session) and proposer.propose([], 1)):
            return 1.0
        return self._gains.of_chains(proposer.hit_rate, sharing, alone=True)[1]

    # --- rows ---------------------------------------------------------------------------------

    def _shares(
        self,
        sessions: Sequence[ControlledSession],
        drafts: Sequence[bool],
        turns: Turns | None,
    ) -> list[Share]:
        """Of sessions for each of which the draft works, or not."""
        count = len(sessions)
        works = [
            (drafted and each.drafts) or not each.adapts
            for each, drafted in zip(sessions, drafts, strict=True)
        ]
        if works and not any(works) and self._costs.plans_plain(count):
            return [Share(False, 1, 0) for _ in sessions]

        return [
            self._share(session, count, turns, drafts=drafted)
            for session, drafted in zip(sessions, drafts, strict=True)
        ]

    def _share(
        self,
        session: ControlledSession,
        sharing: int,
        turns: Turns | None,
        *,
        drafts: bool,
    ) -> Share:
        if not session.queries:
            return Share(False, 1, 0)
        text, config, remote = self._texts[session.number], self._config, session.is_remote
        drafts = drafts and session.drafts
        rows = max(self._curve.choices)
        text.leans = drafts and session.adapts and self._repeats(session, text, sharing, turns)
        ngram_tokens = rows if text.leans or not drafts else config.ngram_tokens
        ngram_tokens = ngram_tokens if config.ngram_tokens else 0
        drafts = drafts and not text.leans
        alone = not drafts or turns is not None
        least = max(LEAST_CHANCE, self._costs.least_chance(sharing, alone=alone))
        if not (drafts and turns):
            return Share(drafts, rows, ngram_tokens, remote, least)
        patience_s = 2e-3 * turns.ms
        return Share(True, rows, ngram_tokens, False, least, turns.draft_passes, patience_s)

    def _repeats(
        self, session: ControlledSession, text: _Text, sharing: int, turns: Turns | None
    ) -> bool:
        """Whether n-gram proposals fill the rows that they are worth, and gain more than the draft
        does: a text that repeats itself needs no draft."""
        if not self._config.ngram_tokens or (text.leans and text.surprised):
            return False
        rows, gain = self._gains.of_chains(session.proposer.hit_rate, sharing, alone=True)
        drafts = self._gains.of_chains(text.acceptance.rate, sharing, alone=False)[1]
        if gain <= (drafts if turns is None else turns.gain):
            return False
        return rows > 1 and len(session.proposer.propose([], rows - 1)) == rows - 1


def _is_drafted(session: ControlledSession) -> bool:
    """Whether the draft makes candidates for it: no device does, nor n-grams alone."""
    return session.drafts and not session.is_remote

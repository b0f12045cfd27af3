"""A machine with a target and a draft in simulated time, under the control of the product."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from card.cache import NO_CANDIDATES, Candidates
from card.engines.row_costs import CostCurve
from card.sampling import SamplingParameters
from card.speculation.control import ControlConfig, Controller, Outcome, Share
from card.speculation.control.measured import Measured
from card.speculation.pacing import PACINGS, Pacing

CURVE_MS = {1: 10.0, 2: 10.4, 4: 11.6, 8: 15.0, 16: 24.0, 32: 42.0}
"""A processor of few cores: a row is cheap, many are not."""

Agreement = Callable[[int], float]
"""Chance that a candidate is accepted, by the tokens of the text so far."""


@dataclass(frozen=True)
class Ngrams:
    """As many proposals as are wanted, each right with this chance; 0: none."""

    hit_rate: float

    def propose(self, behind: Sequence[int], limit: int) -> list[int]:
        return [0] * limit if self.hit_rate else []


@dataclass(eq=False)
class Session:
    """One text.

    ngrams     chance of each n-gram proposal behind what the draft gives to be right; 0: none
    by_ngrams  n-grams alone propose, as often right as `agreement` says
    """

    number: int
    agreement: Agreement
    parameters: SamplingParameters = field(default_factory=SamplingParameters)
    pacing: Pacing = PACINGS["card"]
    ngrams: float = 0.0
    tokens: int = 0
    is_remote: bool = False
    by_ngrams: bool = False

    @property
    def proposer(self) -> Ngrams:
        return Ngrams(self.ngrams)

    @property
    def queries(self) -> bool:
        return self.pacing.queries

    @property
    def drafts(self) -> bool:
        return self.pacing.drafts and not self.by_ngrams

    @property
    def adapts(self) -> bool:
        return self.pacing.adapts and not self.is_remote

    @property
    def takes_turns(self) -> bool:
        return self.pacing.takes_turns and self.adapts


@dataclass
class World:
    """What passes cost here, and how good the draft is.

    contention  by how much a draft at work slows a pass of the target
    promise     chance that the draft gives each of its candidates
    supply      candidates that it makes for all sessions together in a pass of the target
    late        passes before it has candidates after it was stopped, or for a new text
    draft_ms    of a pass of it alone; 0: nobody knows. In turns each adds a candidate
    wakes_ms    that every turn takes besides
    change      by how much a pass of other rows than the one before takes longer
    slowness    of the machine, which may change; `alone_s` knows it
    """

    curve_ms: dict[int, float] = field(default_factory=lambda: dict(CURVE_MS))
    alone_share: float = 0.8
    contention: float = 1.3
    promise: float = 0.7
    supply: int = 8
    late: int = 3
    draft_ms: float = 0.0
    wakes_ms: float = 0.0
    change: float = 1.0
    slowness: float = 1.0
    draft_lives: bool = True
    seed: int = 1

    def __post_init__(self) -> None:
        self.costs = CostCurve(self.curve_ms)
        self.control: Controller = Measured(
            ControlConfig(costs_ms=self.curve_ms, alone_share=self.alone_share, ngram_tokens=6)
        )
        self.random = random.Random(self.seed)
        self.numbers = iter(range(1, 1 << 30))
        self.seconds = 0.0
        self.drafted_passes = 0
        self.passes_in_turns = 0
        self.passes = 0
        self._awaited = 0
        self._lateness: dict[int, int] = {}
        self._rows = 0

    def alone_s(self, tokens: int, sessions: int = 1) -> float:
        """Seconds in which decoding alone gives so many tokens."""
        alone_ms = self.costs.pass_ms(sessions) * self.alone_share * self.slowness
        return tokens / sessions * alone_ms / 1e3

    def session(self, agreement: float | Agreement, **fields: object) -> Session:
        chance = agreement if callable(agreement) else lambda _: agreement
        return Session(next(self.numbers), chance, **fields)  # type: ignore[arg-type]

    def write(self, sessions: list[Session], tokens: int) -> float:
        """Let each session write so many tokens; how fast, against decoding alone."""
        began, written = self.seconds, 0
        open_sessions = list(sessions)
        alone_s = 0.0
        while open_sessions:
            count = len(open_sessions)
            given = self._pass(open_sessions)
            written += given
            alone_s += self.alone_s(given, count)
            for session in [s for s in open_sessions if s.tokens >= tokens]:
                self.control.forget(session)
                open_sessions.remove(session)
        return alone_s / (self.seconds - began)

    def texts(self, count: int, agreement: float | Agreement, tokens: int = 128) -> list[float]:
        """The speeds of texts that are written one after the other."""
        return [self.write([self.session(agreement)], tokens) for _ in range(count)]

    def _pass(self, sessions: list[Session]) -> int:
        waited_s = self._wait()
        plan = self.control.plan(
            sessions, draft_lives=self.draft_lives, draft_pass_ms=self.draft_ms
        )
        found = [
            self._candidates(session, share, len(sessions))
            for session, share in zip(sessions, plan.shares, strict=True)
        ]
        self._awaited, self._patience_s = plan.shares[0].awaited, plan.shares[0].patience_s
        counts = self.control.trim(plan, sessions, [chain for chain, _ in found])
        outcomes = [
            self._verified(session, chain, drafted, count)
            for session, (chain, drafted), count in zip(sessions, found, counts, strict=True)
        ]
        rows = sum(1 + outcome.verified for outcome in outcomes)
        share = self.contention if plan.has_company else self.alone_share
        share *= self.slowness * (self.change if rows != self._rows else 1.0)
        self._rows = rows
        seconds = self.costs.pass_ms(rows) * share / 1e3 * self.random.uniform(0.9, 1.1)
        self.seconds += seconds
        self.passes += 1
        self.drafted_passes += plan.drafts
        self.passes_in_turns += waited_s > 0.0
        given = 0
        for session, outcome in zip(sessions, outcomes, strict=True):
            session.tokens += outcome.accepted + 1
            given += outcome.accepted + 1
        self.control.observe(plan, sessions, outcomes, seconds, waited_s)
        return given

    def _wait(self) -> float:
        """Until the draft has had its turn."""
        if not self._awaited:
            return 0.0
        waited_s = 1e-3 * self.slowness * (self._awaited * self.draft_ms + self.wakes_ms)
        waited_s = min(waited_s, self._patience_s)
        self.seconds += waited_s
        return waited_s

    def _candidates(self, session: Session, share: Share, sharing: int) -> tuple[Candidates, int]:
        """A chain, and how many of it are the draft's."""
        most = share.num_rows - 1
        if session.by_ngrams:
            return self._chain(self.random.randint(0, most)), 0
        chain = self._drafted(session, share.drafts, most, sharing)
        drafted, likelihood = len(chain), chain.chances[-1] if chain.chances else 1.0
        chances = list[float]()
        while session.ngrams and len(chances) < min(share.ngram_tokens, most - drafted):
            likelihood *= session.ngrams
            if likelihood < share.least_chance:
                break
            chances.append(likelihood)
        whole = Candidates.chain([0] * (drafted + len(chances)), [*chain.chances, *chances])
        return whole, drafted

    def _drafted(self, session: Session, drafts: bool, most: int, sharing: int) -> Candidates:
        if not drafts or not (self.draft_lives or session.is_remote):
            self._lateness[session.number] = self.late
            return NO_CANDIDATES
        if self._lateness.setdefault(session.number, self.late):
            self._lateness[session.number] -= 1
            return NO_CANDIDATES
        made = self._awaited or self.random.randint(0, 2 * self.supply // sharing)
        count = min(most, made)
        return self._chain(count)

    def _chain(self, count: int) -> Candidates:
        return Candidates.chain([0] * count, [self.promise ** (at + 1) for at in range(count)])

    def _verified(
        self, session: Session, candidates: Candidates, drafted: int, count: int
    ) -> Outcome:
        agreement = session.agreement(session.tokens)
        behind = agreement if session.by_ngrams else session.ngrams
        accepted = 0
        while accepted < count and self.random.random() < (
            agreement if accepted < drafted else behind
        ):
            accepted += 1
        rejected = accepted < count
        return Outcome.of(candidates.first(count), drafted, range(accepted), rejected=rejected)

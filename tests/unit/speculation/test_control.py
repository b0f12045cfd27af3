"""What the measured controller promises, on a machine of a cost curve and a draft's agreement.

`Machine.write` feeds `plan`, `trim` and `observe` with passes that take what the curve says.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import harmonic_mean, mean
from typing import Any

import pytest

from card.cache import ROOT, Candidates
from card.engines.row_costs import CostCurve
from card.sampling import SamplingParameters
from card.speculation.control import CONTROLLERS, ControlConfig, Controller, Outcome
from card.speculation.control.measured import Measured
from card.speculation.pacing import PACINGS, Pacing

FEW_CORES_MS = {1: 10.0, 2: 10.4, 4: 11.6, 8: 15.0, 16: 24.0, 32: 42.0}
"""A row is cheap, many are not."""
FREE_ROWS_MS = {1: 10.0, 8: 10.5, 32: 12.0, 64: 15.0}
"""A GPU: what a pass costs is reading the weights."""
SHARED_DEVICE: dict[str, Any] = {
    "curve_ms": FREE_ROWS_MS, "alone_share": 1.0, "contention": 1.4, "supply": 1, "draft_ms": 2.2,
}  # fmt: skip
"""Two models on one GPU: beside the target the draft makes one pass where five would fit."""


class NoNgrams:
    hit_rate = 0.0

    def propose(self, behind: Sequence[int], limit: int) -> list[int]:
        return []


@dataclass(eq=False)
class Session:
    """One text; `agreement` is the chance of a candidate, by the tokens of the text so far."""

    number: int
    agreement: Callable[[int], float]
    pacing: Pacing = PACINGS["card"]
    parameters: SamplingParameters = field(default_factory=SamplingParameters)
    proposer: Any = field(default_factory=NoNgrams)
    is_remote: bool = False
    tokens: int = 0

    @property
    def queries(self) -> bool:
        return self.pacing.queries

    @property
    def drafts(self) -> bool:
        return self.pacing.drafts

    @property
    def adapts(self) -> bool:
        return self.pacing.adapts and not self.is_remote

    @property
    def takes_turns(self) -> bool:
        return self.pacing.takes_turns and self.adapts


@dataclass
class Machine:
    """What passes cost here, and how good the draft is.

    alone_share  share of its time that a pass takes while the draft is stopped
    contention   by how much a draft at work slows a pass of the target
    supply       candidates that the draft makes beside a pass of the target; 0: none
    draft_ms     of a pass of the draft, for which the target may wait; 0: not known
    """

    curve_ms: dict[int, float] = field(default_factory=lambda: FEW_CORES_MS)
    alone_share: float = 0.8
    contention: float = 1.3
    supply: int = 8
    draft_ms: float = 0.0
    draft_lives: bool = True
    seed: int = 1

    def __post_init__(self) -> None:
        self.curve = CostCurve(self.curve_ms)
        self.control: Controller = Measured(
            ControlConfig(costs_ms=self.curve_ms, alone_share=self.alone_share)
        )
        self.random = random.Random(self.seed)
        self.numbers = count(1)
        self.passes = self.drafted_passes = 0

    def session(self, agreement: float | Callable[[int], float], **fields: Any) -> Session:
        chance = agreement if callable(agreement) else lambda _: agreement
        return Session(next(self.numbers), chance, **fields)

    def texts(self, number: int, agreement: float, pacing: str = "card") -> list[float]:
        """The speeds of texts that are written one after the other."""
        kind = {"pacing": PACINGS[pacing]}
        return [self.write([self.session(agreement, **kind)], 128) for _ in range(number)]

    def write(self, sessions: Sequence[Session], tokens: int) -> float:
        """Let each session write so many tokens; how fast, against decoding alone."""
        ms, alone_ms, left = 0.0, 0.0, list(sessions)
        while left:
            written, pass_ms = self._pass(left)
            ms += pass_ms
            one_ms = self.curve.pass_ms(len(left)) * self.alone_share
            alone_ms += one_ms * written / len(left)
            for session in [session for session in left if session.tokens >= tokens]:
                self.control.forget(session)
                left.remove(session)
        return alone_ms / ms

    def _pass(self, sessions: Sequence[Session]) -> tuple[int, float]:
        """Tokens and milliseconds."""
        plan = self.control.plan(
            sessions, draft_lives=self.draft_lives, draft_pass_ms=self.draft_ms
        )
        waited_ms = plan.shares[0].awaited * self.draft_ms
        found = []
        for session, share in zip(sessions, plan.shares, strict=True):
            works = share.drafts and (self.draft_lives or session.is_remote) and self.supply
            beside = self.random.randint(0, 2 * self.supply // len(sessions))
            made = min(share.num_rows - 1, share.awaited or beside) if works else 0
            found.append(Candidates.chain([0] * made, [0.7 ** (at + 1) for at in range(made)]))
        outcomes = []
        counts = self.control.trim(plan, sessions, found)
        for session, chain, verified in zip(sessions, found, counts, strict=True):
            chance, accepted = session.agreement(session.tokens), 0
            while accepted < verified and self.random.random() < chance:
                accepted += 1
            outcomes.append(
                Outcome.of(
                    chain.first(verified), verified, range(accepted), rejected=accepted < verified
                )
            )
            session.tokens += accepted + 1
        rows = sum(1 + outcome.verified for outcome in outcomes)
        ms = self.curve.pass_ms(rows) * self.random.uniform(0.9, 1.1)
        ms *= self.contention if plan.has_company else self.alone_share
        self.control.observe(plan, sessions, outcomes, ms / 1e3, waited_ms / 1e3)
        self.passes += 1
        self.drafted_passes += plan.drafts
        return sum(outcome.accepted + 1 for outcome in outcomes), ms + waited_ms


@pytest.mark.parametrize("agreement", [0.5, 0.8])
def test_auto_takes_turns_when_models_share_a_device(agreement: float) -> None:
    beside = harmonic_mean(Machine(**SHARED_DEVICE).texts(24, agreement, "card"))
    assert harmonic_mean(Machine(**SHARED_DEVICE).texts(24, agreement, "auto")) > 1.1 * beside


@pytest.mark.parametrize("agreement", [0.0, 0.4, 0.5])
def test_poor_draft_costs_at_most_three_percent_over_many_texts(agreement: float) -> None:
    assert harmonic_mean(Machine().texts(40, agreement)) > 0.97


@pytest.mark.parametrize("agreement", [0.0, 0.4])
def test_turns_cost_at_most_three_percent_when_they_cannot_pay(agreement: float) -> None:
    assert harmonic_mean(Machine(**SHARED_DEVICE).texts(40, agreement, "auto")) > 0.97


@pytest.mark.parametrize("agreement", [0.0, 0.4])
def test_first_text_keeps_nine_tenths_of_the_speed_when_the_draft_is_poor(
    agreement: float,
) -> None:
    assert min(Machine(seed=seed).texts(1, agreement)[0] for seed in range(12)) > 0.9


@pytest.mark.parametrize(("agreement", "gain"), [(0.7, 1.15), (0.9, 1.5)])
def test_good_draft_gains_over_many_texts(agreement: float, gain: float) -> None:
    for seed in range(3):
        assert harmonic_mean(Machine(seed=seed).texts(20, agreement)) > gain


def test_text_gets_its_draft_back_when_it_becomes_easy() -> None:
    machine = Machine()
    machine.texts(2, 0.85)
    text = machine.session(lambda length: 0.0 if length < 500 else 0.85)
    assert machine.write([text], 500) > 0.9
    machine.write([text], 900)
    assert machine.write([text], 1500) > 1.3


def test_good_texts_are_found_when_they_follow_hopeless_ones() -> None:
    machine = Machine()
    machine.texts(10, 0.0)
    assert mean(machine.texts(8, 0.85)[4:]) > 1.3


def test_temperature_is_measured_for_itself_when_another_one_is_hopeless() -> None:
    machine = Machine()
    hot = SamplingParameters(temperature=1.5)
    for _ in range(4):
        machine.write([machine.session(0.0, parameters=hot)], 128)
    assert mean(machine.texts(3, 0.85)) > 1.3


@pytest.mark.parametrize("sessions", [4, 16])
@pytest.mark.parametrize("agreement", [0.0, 0.9])
def test_many_streams_lose_at_most_three_percent_when_they_share_passes(
    sessions: int, agreement: float
) -> None:
    machine = Machine()
    bursts = [
        machine.write([machine.session(agreement) for _ in range(sessions)], 128) for _ in range(12)
    ]
    assert bursts[0] > 0.9
    assert harmonic_mean(bursts) > 0.97


def test_many_streams_gain_from_the_first_burst_when_rows_are_cheap() -> None:
    machine = Machine(curve_ms=FREE_ROWS_MS, contention=1.02, alone_share=1.0, supply=64)
    assert machine.write([machine.session(0.8) for _ in range(8)], 128) > 2.0


def test_dead_draft_costs_nothing_and_gains_again_when_it_comes_back() -> None:
    machine = Machine(draft_lives=False)
    assert harmonic_mean(machine.texts(6, 0.85)) > 0.98
    machine.draft_lives = True
    assert machine.texts(1, 0.85)[0] > 1.2


def test_draft_is_stopped_when_it_makes_no_candidates() -> None:
    assert harmonic_mean(Machine(supply=0).texts(30, 0.85)) > 0.97


def test_draft_is_stopped_when_passes_beside_it_are_dearer_than_assumed() -> None:
    assert harmonic_mean(Machine(contention=2.5).texts(40, 0.7)) > 0.97


@pytest.mark.parametrize("pacing", ["draft_then_verify", "pearl"])
def test_pacing_that_waits_keeps_its_draft_when_every_candidate_is_wrong(pacing: str) -> None:
    machine = Machine()
    machine.texts(1, 0.0, pacing)
    assert machine.drafted_passes == machine.passes


def test_device_gains_when_the_servers_draft_is_dead() -> None:
    machine = Machine(draft_lives=False)
    assert machine.write([machine.session(0.9, is_remote=True)], 600) > 1.5
    assert machine.drafted_passes == 0


@pytest.mark.parametrize("control", CONTROLLERS)
def test_pass_verifies_no_more_than_it_was_offered(control: str) -> None:
    controller = CONTROLLERS[control](ControlConfig(costs_ms=FEW_CORES_MS))
    sessions = [Machine().session(0.5) for _ in range(3)]
    plan = controller.plan(sessions, draft_lives=True)
    found = [Candidates.chain([1] * length, [0.9] * length) for length in (0, 3, 40)]
    counts = controller.trim(plan, sessions, found)
    assert all(0 <= n <= len(chain) for n, chain in zip(counts, found, strict=True))


def test_rows_go_to_the_likeliest_candidates_when_sessions_share_a_pass() -> None:
    machine = Machine(curve_ms={1: 10.0, 4: 10.0, 8: 80.0})
    sessions = [machine.session(0.5) for _ in range(2)]
    plan = machine.control.plan(sessions, draft_lives=True)
    easy = Candidates.chain([1] * 6, [0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    hard = Candidates.chain([1] * 6, [0.3, 0.1, 0.05, 0.02, 0.01, 0.01])
    assert machine.control.trim(plan, sessions, [easy, hard]) == [2, 0]


SUBTREE = Candidates([5, 6, 7, 8], [ROOT, ROOT, 0, 1], [0.6, 0.3, 0.42, 0.2])
"""Two paths, likeliest first: 5 7 and 6 8."""


@pytest.mark.parametrize(
    ("path", "rejected", "chances", "agreed"),
    [
        ([0, 2], False, [0.6, 0.7], 2),
        ([0], True, [0.6, 0.7], 1),
        ([1, 3], False, [0.6, 0.2 / 0.3], 1),  # by the second candidate, and what is below it
        ([1], False, [0.6], 0),  # the text ended
        ([], True, [0.6], 0),
    ],
)
def test_draft_is_judged_by_its_first_candidate_when_a_subtree_is_verified(
    path: list[int], rejected: bool, chances: list[float], agreed: int
) -> None:
    outcome = Outcome.of(SUBTREE, 4, path, rejected=rejected)
    assert outcome.chances == pytest.approx(chances)
    assert (outcome.agreed, outcome.accepted) == (agreed, len(path))
    by_ngrams = Outcome.of(SUBTREE, 0, path, rejected=rejected)
    assert (list(by_ngrams.chances), by_ngrams.agreed) == ([], 0)


def test_subtree_is_verified_as_far_as_it_pays() -> None:
    for curve_ms, kept in ((FREE_ROWS_MS, 4), ({1: 10.0, 2: 13.0, 8: 30.0}, 1)):
        machine = Machine(curve_ms=curve_ms)
        session = machine.session(0.7)
        plan = machine.control.plan([session], draft_lives=True)
        assert machine.control.trim(plan, [session], [SUBTREE]) == [kept]

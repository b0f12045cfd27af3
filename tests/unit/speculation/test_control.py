"""What `auto` promises, on machines that a simulated clock drives with the product's own loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from machines import MACHINES, plain_ms, written_ms
from simulated_machine import Load, SimulatedMachine

from card.cache import ROOT, Candidates
from card.engines.row_costs import CostCurve
from card.sampling import SamplingParameters
from card.speculation.control import CONTROLLERS, ControlConfig, Outcome
from card.speculation.control.costs import PassCosts

USELESS, ORDINARY, GOOD = 0.0, 0.6, 0.9


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("repeats", [0.0, 0.9], ids=["new", "repeating"])
def test_auto_when_the_draft_is_useless_loses_little(machine: str, repeats: float) -> None:
    """Of the first texts that a server writes; later ones lose the 2 % that probes may cost."""
    with SimulatedMachine(MACHINES[machine], agreement=USELESS, repeats=repeats) as server:
        taken = written_ms(server, range(4), 96)
    assert taken < 4 * plain_ms(machine, 96) / 0.96


@pytest.mark.parametrize("machine", MACHINES)
def test_auto_when_the_draft_is_good_gains_nearly_what_the_best_fixed_way_gains(
    machine: str,
) -> None:
    """Once it has written three texts; the fixed ways write the two behind them, too."""
    with SimulatedMachine(MACHINES[machine], agreement=GOOD) as server:
        written_ms(server, range(3), 96)
        auto = written_ms(server, range(3, 5), 96)
        fixed = [
            written_ms(server, range(3, 5), 96, decoding=decoding)
            for decoding in ("card", "draft_then_verify")
        ]
    assert auto < min(fixed) / 0.7


@pytest.mark.parametrize("machine", MACHINES)
def test_auto_when_the_draft_is_good_gains(machine: str) -> None:
    with SimulatedMachine(MACHINES[machine], agreement=GOOD) as server:
        taken = written_ms(server, range(4), 96)
    assert taken < 4 * plain_ms(machine, 96) / 1.05


@pytest.mark.parametrize(
    "wrong",
    [{1: 0.5}, {1: 3.0}, {1: 0.5, 2: 1.0}, {1: 3.0, 2: 1.0}, {1: 1.0, 2: 0.5}, {1: 1.0, 2: 3.0}],
    ids=str,
)
def test_auto_when_load_was_wrong_forgets_it(wrong: dict[int, float]) -> None:
    """For all rows, for one row, for more than one."""
    machine, believed = MACHINES["AVX512-VNNI"], Load(wrong)
    with SimulatedMachine(machine, agreement=USELESS, load=believed) as server:
        assert written_ms(server, range(2), 96) < 2 * plain_ms("AVX512-VNNI", 96) / 0.92
    with SimulatedMachine(machine, agreement=GOOD, load=believed) as server:
        assert written_ms(server, range(4), 96) < 4 * plain_ms("AVX512-VNNI", 96) / 1.3


@pytest.mark.parametrize("tokens", [8, 32])
def test_auto_when_texts_are_short_loses_little(tokens: int) -> None:
    with SimulatedMachine(MACHINES["AVX512-VNNI"], agreement=USELESS) as server:
        taken = written_ms(server, range(12), tokens, temperature=0.8)
    assert taken < 12 * plain_ms("AVX512-VNNI", tokens) / 0.94


@pytest.mark.parametrize("agreement", [USELESS, ORDINARY])
@pytest.mark.parametrize("streams", [4, 16])
def test_auto_when_many_texts_are_written_at_once_costs_at_most_five_percent(
    streams: int, agreement: float
) -> None:
    machine = MACHINES["AVX512-BF16"]
    with SimulatedMachine(machine, agreement=agreement, slots=streams) as server:
        taken = written_ms(server, range(2), 48, streams=streams)
    assert taken < 2 * plain_ms("AVX512-BF16", 48, streams) / 0.95


def test_auto_when_the_draft_slows_down_or_dies_goes_on_alone() -> None:
    with SimulatedMachine(MACHINES["AVX512-BF16"], agreement=GOOD) as server:
        written_ms(server, range(3), 96)
        server.draft_pauses_ms = 20.0
        written_ms(server, [3], 96)  # in which it is found out
        slow = written_ms(server, range(4, 7), 96)
        server.draft_lives = False
        dead = written_ms(server, range(7, 9), 96)
    assert slow < 3 * plain_ms("AVX512-BF16", 96) / 0.96
    assert dead < 2 * plain_ms("AVX512-BF16", 96) / 0.96


def test_text_when_the_clock_is_simulated_is_that_of_decoding_alone() -> None:
    texts = []
    for decoding in ("autoregressive", "auto", "card", "draft_then_verify"):
        with SimulatedMachine(MACHINES["one GPU"], agreement=GOOD) as server:
            written_ms(server, [1], 64, decoding=decoding)
            texts.append(server.last_text)
    assert len(texts[0]) == 64
    assert texts[1:] == 3 * texts[:1]


def test_a_lying_device_costs_other_sessions_no_rows() -> None:
    """Its candidates are judged by its own text alone."""
    costs: Mapping[int, float] = {1: 10.0, 2: 10.5, 4: 11.0, 8: 40.0}
    controller = CONTROLLERS["measured"](ControlConfig(costs_ms=costs))
    honest, lying = _Session(0), _Session(1)
    lying.is_remote, lying.adapts = True, False
    found = [Candidates.chain([1, 1], [0.9, 0.8]), Candidates.chain([1, 1], [0.99, 0.98])]
    for _ in range(40):
        plan = controller.plan([honest, lying], draft_lives=True)
        counts = controller.trim(plan, [honest, lying], found, [2, 2], beside=True)
        outcomes = [
            Outcome.of(found[0].first(counts[0]), 2, range(counts[0]), rejected=False),
            Outcome.of(found[1].first(counts[1]), 2, [], rejected=counts[1] > 0),
        ]
        controller.observe(plan, [honest, lying], outcomes, 0.011, beside=True)
    assert counts == [2, 0]


def test_a_device_when_the_draft_is_dead_still_drafts() -> None:
    controller = CONTROLLERS["measured"](ControlConfig(costs_ms={1: 10.0, 8: 11.0}))
    remote = _Session(0)
    remote.is_remote, remote.adapts = True, False
    (share,) = controller.plan([remote], draft_lives=False).shares
    assert share.drafts


def test_costs_when_a_pass_was_seen_follow_it_and_correct_their_neighbours() -> None:
    costs = PassCosts(CostCurve({1: 10.0, 2: 20.0, 8: 40.0}), {False: 1.0, True: 1.0})
    for _ in range(8):
        costs.learn(2, 1, 10.0, beside=False)
    assert costs.ms(2, 1, beside=False) == pytest.approx(10.0, rel=0.01)
    assert costs.ms(8, 1, beside=False) == pytest.approx(20.0, rel=0.2)
    assert costs.ms(1, 1, beside=False) <= 10.0, "fewer rows never cost more"
    for _ in range(8):
        costs.learn(8, 1, 40.0, beside=False)
    assert costs.ms(8, 1, beside=False) == pytest.approx(40.0, rel=0.05)


def test_costs_when_one_pass_is_interrupted_hardly_change() -> None:
    costs = PassCosts(CostCurve({1: 10.0}), {False: 1.0, True: 1.0})
    for ms in (*[10.0] * 24, 5000.0):
        costs.learn(1, 1, ms, beside=False)
    assert costs.ms(1, 1, beside=False) < 11.0


@pytest.mark.parametrize("control", CONTROLLERS)
def test_trim_never_keeps_more_than_was_found(control: str) -> None:
    found = [Candidates.chain([1] * count, [0.9] * count) for count in (0, 3, 7)]
    controller = CONTROLLERS[control](ControlConfig(num_rows=8, costs_ms={1: 1.0, 64: 1.1}))
    sessions = [_Session(number) for number in range(3)]
    plan = controller.plan(sessions, draft_lives=True)
    counts = controller.trim(plan, sessions, found, [0, 3, 7], beside=True)
    assert all(count <= len(one) for count, one in zip(counts, found, strict=True))


def test_trim_gives_rows_to_the_likeliest_candidates_of_all_sessions() -> None:
    costs: Mapping[int, float] = {1: 10.0, 2: 10.1, 4: 10.2, 8: 100.0}
    controller = CONTROLLERS["measured"](ControlConfig(costs_ms=costs))
    sessions = [_Session(0), _Session(1)]
    plan = controller.plan(sessions, draft_lives=True)
    found = [Candidates.chain([1, 1], [0.9, 0.8]), Candidates.chain([1, 1], [0.3, 0.1])]
    assert controller.trim(plan, sessions, found, [2, 2], beside=False) == [2, 0]


def test_outcome_judges_each_step_by_its_first_candidate_and_who_gave_it() -> None:
    candidates = Candidates([5, 6, 7, 8], [ROOT, ROOT, 0, 2], [0.6, 0.3, 0.3, 0.15])
    outcome = Outcome.of(candidates, 3, [0, 2], rejected=True)
    assert (outcome.accepted, outcome.agreed, outcome.ngram_agreed) == (2, 2, 0)
    assert list(outcome.chances) == pytest.approx([0.6, 0.5])
    assert list(outcome.ngram_chances) == pytest.approx([0.5])


class _Session:
    """A session as controllers see it."""

    queries = drafts = adapts = takes_turns = True
    is_remote = False
    parameters = SamplingParameters()

    def __init__(self, number: int) -> None:
        self.number = number
        self.proposer = self
        self.hit_rate = 0.0
        self.tokens = np.empty(0, np.int64)

    def propose(self, behind: Any, limit: int) -> list[int]:
        return []

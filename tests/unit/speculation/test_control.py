"""What `auto` promises, on machines that a simulated clock drives with the product's own loops."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
from cells import plain_ms
from machines import MACHINES, written_ms
from simulated_machine import SimulatedMachine

from card.cache import ROOT, Candidates
from card.engines.interface import CostCurve
from card.sampling import SamplingParameters
from card.speculation.acceptance import Outcome
from card.speculation.control import CONTROLLERS, ControlConfig
from card.speculation.control.measured import BOUND, FORGOTTEN, LONGEST_GAP, Choice, PassCosts, Way

USELESS, ORDINARY, GOOD = 0.0, 0.6, 0.9


@pytest.mark.parametrize("agreement", [USELESS, ORDINARY])
@pytest.mark.parametrize("streams", [4, 16])
def test_auto_when_many_texts_are_written_at_once_costs_at_most_five_percent(
    streams: int, agreement: float
) -> None:
    machine = MACHINES["AVX512-BF16"]
    with SimulatedMachine(machine, agreement=agreement, slots=streams) as server:
        taken = written_ms(server, range(2), 48, streams=streams)
    assert taken < 2 * plain_ms("AVX512-BF16", 48, streams) / 0.95


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


def test_costs_when_passes_were_seen_follow_them_and_correct_unknown_cells() -> None:
    costs = PassCosts(CostCurve({1: 10.0, 2: 20.0, 8: 40.0}), (1.0, 1.0))
    for _ in range(8):
        costs.learn(2, 10.0, beside=False)
    assert costs.ms(2, beside=False) == pytest.approx(10.0)
    assert costs.ms(8, beside=True) == pytest.approx(20.0)
    costs.learn(8, 40.0, beside=False)
    assert costs.ms(8, beside=False) == pytest.approx(40.0)


def test_costs_when_a_cell_was_not_seen_for_long_follow_the_others() -> None:
    costs = PassCosts(CostCurve({1: 10.0, 2: 20.0}), (1.0, 1.0))
    costs.learn(2, 90.0, beside=False)
    for _ in range(FORGOTTEN + 1):
        costs.learn(1, 10.0, beside=False)
    assert costs.ms(2, beside=False) == pytest.approx(20.0)


def test_costs_when_one_pass_is_interrupted_hardly_change() -> None:
    costs = PassCosts(CostCurve({1: 10.0}), (1.0, 1.0))
    for ms in (*[10.0] * 24, 5000.0):
        costs.learn(1, ms, beside=False)
    assert costs.ms(1, beside=False) < 11.0


def test_choice_when_a_trial_loses_returns_and_waits_longer_each_time() -> None:
    choice = Choice(Way.ALONE, Way.ALONE)
    trials, lost = [], 0
    for number in range(20_000):
        choice.choose([Way.ALONE, Way.TURNS])
        trials += [number] if choice.tries and not lost else []
        lost = lost + 1 if choice.tries else 0
        choice.learn(1, 20.0 if choice.tries else 10.0, 10.0, 1)
        assert lost <= BOUND + 1
    waits = [after - before for before, after in pairwise(trials)]
    assert waits[:6] == sorted(waits[:6])
    assert waits[-1] == pytest.approx(LONGEST_GAP, rel=0.01)


def test_choice_when_a_trial_gains_takes_the_way_until_it_loses_to_decoding_alone() -> None:
    choice = Choice(Way.ALONE, Way.ALONE)

    def passes(number: int, tokens_in_turns: int) -> None:
        for _ in range(number):
            choice.choose([Way.ALONE, Way.TURNS])
            in_turns = choice.way is Way.TURNS
            choice.learn(tokens_in_turns if in_turns else 1, 20.0 if in_turns else 10.0, 10.0, 1)

    ways = []
    for number, tokens_in_turns in ((100, 4), (20, 1)):  # no other trial is due in these
        passes(number, tokens_in_turns)
        ways.append(choice.settled)
    assert ways == [Way.TURNS, Way.ALONE]


def test_choice_when_an_easy_text_let_a_dearer_way_win_comes_back_in_that_text() -> None:
    choice = Choice(Way.ALONE, Way.ALONE)
    settled = []
    for tokens in [1] * 64 + [3] * 30:
        choice.choose(list(Way))
        settled.append(choice.settled)
        choice.learn(tokens, 10.0 if choice.way is Way.ALONE else 20.0, 10.0, 1)
    assert Way.TURNS in settled
    assert choice.settled is Way.ALONE


def test_choice_when_the_draft_dies_goes_on_alone() -> None:
    choice = Choice(Way.BESIDE, Way.BESIDE)
    choice.choose([Way.ALONE])
    assert choice.way is Way.ALONE


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

"""What `auto` promises, on machines that a simulated clock drives with the product's own loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from cells import plain_ms
from machines import MACHINES, written_ms
from simulated_machine import Load, SimulatedMachine

from card.cache import Candidates
from card.engines.interface import COSTED_ROWS, CostCurve, pass_cost_ms
from card.sampling import SamplingParameters
from card.speculation.acceptance import Outcome
from card.speculation.control import CONTROLLERS, ControlConfig
from card.speculation.control.costs import PROBES, TRIED_ROWS, PassCosts
from card.speculation.control.measured import BOUND, LONGEST_GAP, Choice, Way

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


@pytest.mark.parametrize(
    "wrong",
    [{1: 1.0, 2: 6.0}, {1: 1.0, 2: 1.0, 3: 6.0}, {1: 1.0, 3: 0.2, 4: 1.0}],
    ids=["more than one", "more than two", "all but three"],
)
@pytest.mark.parametrize("changes", [{}, {"drafter": "ngram"}], ids=["draft", "ngram"])
def test_rows_that_load_believed_too_dear_are_seen_to_be_cheap(
    changes: dict[str, Any], wrong: dict[int, float]
) -> None:
    """Also where nothing but n-grams proposes, and where a request names its pacing."""
    decoding = "auto" if changes else "card"
    taken = []
    for load in (Load(), Load(wrong)):
        machine = MACHINES["one GPU"]
        options: dict[str, Any] = {"agreement": GOOD, "repeats": 0.9, "load": load}
        with SimulatedMachine(machine, **options, **changes) as server:
            written_ms(server, [0], 64, decoding=decoding)
            taken.append(written_ms(server, [1, 2], 128, decoding=decoding))
    assert taken[1] < 1.07 * taken[0]


@pytest.mark.parametrize("numbers", [COSTED_ROWS, (1, 16, 17, 32, 33, 64), (1, 8, 64)])
def test_what_more_rows_cost_is_known_behind_a_few_passes_however_many_texts_share_them(
    numbers: Sequence[int],
) -> None:
    """Else every pass would be a probe: numbers that an engine pads passes to lie far apart."""
    for sharing in range(1, 80):
        costs = PassCosts(CostCurve(dict.fromkeys(numbers, 10.0)), (1.0, 1.0))
        for _ in range(PROBES):
            costs.learn(sharing + TRIED_ROWS, 10.0, beside=False)
        assert costs.knows_more_than(sharing, beside=False), sharing


@pytest.mark.parametrize(("most_rows", "tried"), [(None, 2), (32, 0)])
def test_dear_rows_are_not_tried_when_prompts_are_read_beside(
    most_rows: int | None, tried: int
) -> None:
    """The time of such a pass is not compared, so each would be a probe."""
    controller = CONTROLLERS["measured"](ControlConfig(costs_ms={1: 10.0, 2: 60.0, 4: 120.0}))
    sessions, found = [_Session(0)], [Candidates.chain([1, 1], [0.9, 0.8])]
    plan = controller.plan(sessions, draft_lives=True, most_rows=most_rows)
    assert controller.trim(plan, sessions, found, [2], beside=False) == [tried]


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
        seconds = 1e-3 * pass_cost_ms(costs, 2 + sum(counts))
        controller.observe(plan, [honest, lying], outcomes, seconds, beside=True)
    assert counts == [2, 0]


def test_a_device_when_the_draft_is_dead_still_drafts() -> None:
    controller = CONTROLLERS["measured"](ControlConfig(costs_ms={1: 10.0, 8: 11.0}))
    remote = _Session(0)
    remote.is_remote, remote.adapts = True, False
    (share,) = controller.plan([remote], draft_lives=False).shares
    assert share.drafts


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


@pytest.mark.parametrize("control", CONTROLLERS)
def test_trim_never_keeps_more_than_was_found(control: str) -> None:
    found = [Candidates.chain([1] * count, [0.9] * count) for count in (0, 3, 7)]
    controller = CONTROLLERS[control](ControlConfig(num_rows=8, costs_ms={1: 1.0, 64: 1.1}))
    sessions = [_Session(number) for number in range(3)]
    plan = controller.plan(sessions, draft_lives=True)
    counts = controller.trim(plan, sessions, found, [0, 3, 7], beside=True)
    assert all(count <= len(one) for count, one in zip(counts, found, strict=True))


class _Session:
    """A session as controllers see it."""

    queries = drafts = adapts = takes_turns = True
    is_remote = False
    parameters = SamplingParameters()

    def __init__(self, number: int) -> None:
        self.number = number

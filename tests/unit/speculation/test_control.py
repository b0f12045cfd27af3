"""What the measured controller promises, as properties of a simulated machine."""

from __future__ import annotations

from functools import cache
from statistics import harmonic_mean, mean
from typing import Any

import pytest
from simulated_world import World

from card.cache import ROOT, Candidates
from card.engines.row_costs import CostCurve
from card.sampling import SamplingParameters
from card.speculation.control import CONTROLLERS, ControlConfig, Outcome
from card.speculation.pacing import PACINGS

FREE_ROWS_MS = {1: 10.0, 8: 10.5, 32: 12.0, 64: 15.0}
"""A GPU: what a pass costs is reading the weights."""

TWO_CHEAP_ROWS_MS = {1: 10.0, 2: 11.2, 4: 13.5, 8: 20.0}
"""Where n-grams pay little: a second row costs an eighth of a pass."""


SHARED_DEVICE: dict[str, Any] = {
    "curve_ms": {1: 10.0, 8: 10.5, 32: 12.0, 64: 15.0},
    "alone_share": 1.0,
    "contention": 1.4,
    "supply": 1,
    "draft_ms": 2.2,
}
"""Two models on one GPU, as measured: beside the target the draft makes a pass where five fit."""


def speeds(
    world: World, agreement: float, pacing: str = "auto", texts: int = 24, ngrams: float = 0.0
) -> list[float]:
    """Of texts that are written one after the other."""
    kind = {"pacing": PACINGS[pacing], "ngrams": ngrams}
    sessions = (world.session(agreement, **kind) for _ in range(texts))
    return [world.write([session], 128) for session in sessions]


@pytest.mark.parametrize("agreement", [0.5, 0.7, 0.8, 0.9])
def test_models_that_share_a_device_take_turns_where_that_gains_more(agreement: float) -> None:
    beside = harmonic_mean(speeds(World(**SHARED_DEVICE), agreement, "card"))
    assert harmonic_mean(speeds(World(**SHARED_DEVICE), agreement)) > 1.1 * beside


@pytest.mark.parametrize("agreement", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("wakes_ms", [0.0, 6.0])
def test_a_draft_with_a_place_of_its_own_is_seldom_awaited(
    agreement: float, wakes_ms: float
) -> None:
    apart: dict[str, Any] = {"contention": 0.8, "draft_ms": 2.0, "wakes_ms": wakes_ms}
    world = World(**apart)
    beside = harmonic_mean(speeds(World(**apart), agreement, "card"))
    assert harmonic_mean(speeds(world, agreement)) > 0.97 * beside
    assert world.passes_in_turns < 0.05 * world.passes


@pytest.mark.parametrize("shares", [SHARED_DEVICE, {"draft_ms": 2.0, "wakes_ms": 6.0}])
@pytest.mark.parametrize("agreement", [0.0, 0.2, 0.4])
def test_turns_that_cannot_pay_cost_no_more_than_three_percent(
    agreement: float, shares: dict[str, Any]
) -> None:
    """Here a turn takes as long as a pass of the target, or the draft is seldom right."""
    assert harmonic_mean(speeds(World(**shares), agreement, texts=40)) > 0.97


PLACES = {"shared": SHARED_DEVICE, "apart": {"draft_ms": 2.0}}


@cache
def speed_of_n_grams_alone(pacing: str, place: str, ngrams: float) -> float:
    world = World(**PLACES[place], draft_lives=False)
    return harmonic_mean(speeds(world, 0.0, pacing, 40, ngrams))


@pytest.mark.parametrize("pacing", ["card", "auto"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("agreement", [0.0, 0.4])
@pytest.mark.parametrize("ngrams", [0.2, 0.4])
def test_a_draft_costs_no_more_than_three_percent_of_what_n_grams_alone_give(
    pacing: str, place: str, agreement: float, ngrams: float
) -> None:
    """Passes for which the draft was waited for in vain count, also where n-grams alone came."""
    with_draft = harmonic_mean(speeds(World(**PLACES[place]), agreement, pacing, 40, ngrams))
    assert with_draft > 0.97 * speed_of_n_grams_alone(pacing, place, ngrams)


def test_a_draft_that_is_wedged_in_its_turn_is_sent_away() -> None:
    world = World(**SHARED_DEVICE)
    assert speeds(world, 0.8)[-1] > 1.2
    world.draft_ms, world.supply = 2.2, 0
    world.wakes_ms, world.late = 1e9, 10_000
    assert harmonic_mean(speeds(world, 0.8)) > 0.95


@pytest.mark.parametrize("promise", [0.6, 0.95])
@pytest.mark.parametrize("agreement", [0.0, 0.2, 0.4, 0.5])
def test_in_the_long_run_no_draft_costs_more_than_three_percent(
    agreement: float, promise: float
) -> None:
    assert harmonic_mean(World(promise=promise).texts(40, agreement)) > 0.97


@pytest.mark.parametrize("promise", [0.6, 0.95])
@pytest.mark.parametrize("agreement", [0.0, 0.2, 0.4, 0.5])
def test_a_first_text_never_falls_below_nine_tenths(agreement: float, promise: float) -> None:
    firsts = [World(promise=promise, seed=seed).texts(1, agreement)[0] for seed in range(12)]
    assert min(firsts) > 0.9


@pytest.mark.parametrize(("agreement", "gain"), [(0.6, 1.0), (0.7, 1.15), (0.9, 1.5)])
def test_a_good_draft_gains_and_is_never_sent_away_for_long(agreement: float, gain: float) -> None:
    for seed in range(3):
        assert harmonic_mean(World(seed=seed).texts(20, agreement)) > gain


def test_a_good_draft_is_at_work_again_soon_after_it_was_unlucky() -> None:
    world = World()
    world.texts(4, 0.85)
    text = world.session(lambda length: 0.0 if 64 <= length < 128 else 0.85)
    world.write([text], 128)
    assert world.write([text], 512) > 1.2


def test_a_text_that_becomes_easy_gets_its_draft_back_and_one_that_becomes_hard_loses_it() -> None:
    world = World()
    world.texts(2, 0.85)
    text = world.session(lambda length: 0.0 if length < 500 else 0.85)
    assert world.write([text], 500) > 0.9
    world.write([text], 900)
    assert world.write([text], 1500) > 1.3


def test_after_many_hopeless_texts_good_ones_are_found_out_within_some_texts() -> None:
    world = World()
    world.texts(10, 0.0)
    assert mean(world.texts(8, 0.85)[4:]) > 1.3


def test_good_texts_among_hopeless_ones_keep_their_draft() -> None:
    world = World()
    for _ in range(8):
        world.texts(1, 0.0)
        world.texts(1, 0.85)
    assert mean(speed for _ in range(4) for speed in world.texts(1, 0.85)) > 1.2


@pytest.mark.parametrize("sessions", [2, 4, 8, 16])
@pytest.mark.parametrize("agreement", [0.0, 0.6, 0.9])
def test_many_streams_are_never_much_slower_than_without_a_draft(
    sessions: int, agreement: float
) -> None:
    world = World()
    bursts = [
        world.write([world.session(agreement) for _ in range(sessions)], 128) for _ in range(12)
    ]
    assert bursts[0] > 0.9
    assert harmonic_mean(bursts) > 0.97


@pytest.mark.parametrize("sessions", [1, 4, 8])
def test_where_rows_are_cheap_many_streams_gain_from_the_first_burst_on(sessions: int) -> None:
    world = World(curve_ms=FREE_ROWS_MS, contention=1.02, alone_share=1.0, supply=8 * sessions)
    assert world.write([world.session(0.8) for _ in range(sessions)], 128) > 2.0


def test_a_burst_that_ends_leaves_a_session_alone_as_it_was() -> None:
    world = World()
    before = mean(world.texts(6, 0.85)[2:])
    world.write([world.session(0.85) for _ in range(8)], 128)
    assert world.texts(1, 0.85)[0] > 0.8 * before


def test_a_dead_draft_costs_nothing_and_says_nothing_of_the_one_that_comes_back() -> None:
    world = World(draft_lives=False)
    assert harmonic_mean(world.texts(6, 0.85)) > 0.98
    world.draft_lives = True
    assert world.texts(1, 0.85)[0] > 1.2


def test_a_draft_that_lives_and_gives_nothing_is_sent_away() -> None:
    world = World(late=10_000)
    assert world.texts(1, 0.85)[0] > 0.9
    assert harmonic_mean(world.texts(30, 0.85)) > 0.97


def test_each_temperature_is_measured_for_itself() -> None:
    world = World()
    hot = SamplingParameters(temperature=1.5)
    for _ in range(4):
        world.write([world.session(0.0, parameters=hot)], 128)
    assert mean(world.texts(3, 0.85)) > 1.3


def test_pacings_that_wait_for_their_draft_keep_it() -> None:
    world = World()
    for name in ("draft_then_verify", "pearl"):
        session = world.session(0.0, pacing=PACINGS[name])
        passes = world.passes, world.drafted_passes
        world.write([session], 128)
        assert world.passes - passes[0] == world.drafted_passes - passes[1]


def test_passes_that_are_dearer_than_measured_at_load_are_found_out() -> None:
    """The draft takes three times as much of the memory bus as assumed."""
    assert harmonic_mean(World(contention=2.5).texts(40, 0.7)) > 0.97


def test_rows_that_are_dearer_than_measured_at_load_are_found_out() -> None:
    """More than two rows double the pass, where they seemed to cost little."""
    world = World(contention=1.0, alone_share=1.0)
    world.costs = CostCurve({1: 10.0, 2: 11.0, 4: 24.0, 8: 48.0, 16: 90.0, 32: 180.0})
    assert harmonic_mean(world.texts(20, 0.6)) > 1.2


@pytest.mark.parametrize("control", CONTROLLERS)
def test_a_pass_never_verifies_more_than_it_was_offered(control: str) -> None:
    world = World()
    controller = CONTROLLERS[control](ControlConfig(costs_ms=world.curve_ms))
    sessions = [world.session(0.5) for _ in range(3)]
    plan = controller.plan(sessions, draft_lives=True)
    found = [Candidates.chain([1] * count, [0.9] * count) for count in (0, 3, 40)]
    counts = controller.trim(plan, sessions, found)
    assert all(0 <= n <= len(chain) for n, chain in zip(counts, found, strict=True))


def test_rows_go_to_the_likeliest_candidates_of_all_sessions() -> None:
    world = World(curve_ms={1: 10.0, 4: 10.0, 8: 80.0})
    sessions = [world.session(0.5) for _ in range(2)]
    plan = world.control.plan(sessions, draft_lives=True)
    easy = Candidates.chain([1] * 6, [0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    hard = Candidates.chain([1] * 6, [0.3, 0.1, 0.05, 0.02, 0.01, 0.01])
    assert world.control.trim(plan, sessions, [easy, hard]) == [2, 0]


@pytest.mark.parametrize("others", [1, 3, 7])
def test_devices_that_lie_cost_others_neither_rows_nor_their_draft(others: int) -> None:
    """Beside as many that decode plainly."""

    def seconds(**kind: object) -> float:
        world = World(contention=1.05)
        world.texts(2, 0.85)
        began = world.seconds
        world.write(
            [world.session(0.85), *(world.session(0.0, **kind) for _ in range(others))], 600
        )
        return world.seconds - began

    assert seconds(is_remote=True) < 1.05 * seconds(pacing=PACINGS["autoregressive"])


def test_a_device_gains_without_a_draft_and_nothing_stops_it() -> None:
    world = World(draft_lives=False)
    assert world.write([world.session(0.9, is_remote=True)], 600) > 1.5
    assert world.drafted_passes == 0


@pytest.mark.parametrize("kind", ["is_remote", "by_ngrams"])
def test_others_that_are_right_keep_no_draft_at_work_that_gives_nothing(kind: str) -> None:
    world = World(late=10_000)
    world.write([world.session(0.4), world.session(0.9, **{kind: True}, tokens=-4000)], 600)
    assert world.drafted_passes < 50, "of some two hundred that both shared"


@pytest.mark.parametrize("chance", [0.05, 0.15, 0.3, 0.6])
def test_n_grams_never_cost_more_than_three_percent_where_a_change_of_rows_is_dear(
    chance: float,
) -> None:
    world = World(change=1.1, alone_share=1.0, promise=chance, curve_ms=TWO_CHEAP_ROWS_MS)
    sessions = [world.session(chance, by_ngrams=True) for _ in range(20)]
    assert harmonic_mean(world.write([session], 128) for session in sessions) > 0.97


@cache
def speed_after(chance: float, *hours: float) -> float:
    """In the last of some hours, by how slow the machine is in each."""
    world = World(alone_share=1.0, promise=chance, curve_ms=TWO_CHEAP_ROWS_MS)
    for world.slowness in hours:
        texts = [world.session(chance, by_ngrams=True) for _ in range(12)]
        found = harmonic_mean(world.write([text], 128) for text in texts)
    return found


@pytest.mark.parametrize("slowness", [0.5, 2.0])
@pytest.mark.parametrize("chance", [0.3, 0.5])
def test_a_slow_hour_of_the_machine_changes_nothing_afterwards(
    slowness: float, chance: float
) -> None:
    assert speed_after(chance, 1.0, slowness, 1.0) > 0.98 * speed_after(chance, 1.0, 1.0, 1.0)


def test_rows_that_once_seemed_too_dear_are_tried_again() -> None:
    """The machine was busy whenever passes had more rows than one."""
    world = World(alone_share=1.0, promise=0.5, curve_ms=TWO_CHEAP_ROWS_MS)
    now = world.costs
    world.costs = CostCurve({1: 10.0, 2: 20.0, 4: 30.0, 8: 40.0})
    texts = [world.session(0.5, by_ngrams=True) for _ in range(12)]
    world.write([texts.pop()], 64)
    world.costs = now
    assert mean(world.write([text], 128) for text in texts) > 1.15


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
def test_a_draft_is_judged_by_its_first_candidate_at_each_step(
    path: list[int], rejected: bool, chances: list[float], agreed: int
) -> None:
    outcome = Outcome.of(SUBTREE, 4, path, rejected=rejected)
    assert outcome.chances == pytest.approx(chances)
    assert (outcome.agreed, outcome.accepted) == (agreed, len(path))
    by_ngrams = Outcome.of(SUBTREE, 0, path, rejected=rejected)
    assert (list(by_ngrams.chances), by_ngrams.agreed) == ([], 0)


def test_of_a_subtree_as_much_is_verified_as_pays() -> None:
    for curve_ms, kept in ((FREE_ROWS_MS, 4), ({1: 10.0, 2: 13.0, 8: 30.0}, 1)):
        world = World(curve_ms=curve_ms)
        session = world.session(0.7)
        plan = world.control.plan([session], draft_lives=True)
        assert world.control.trim(plan, [session], [SUBTREE]) == [kept]

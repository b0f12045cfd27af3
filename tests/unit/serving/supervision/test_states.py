"""The tables of the state machine, walked at random: what no sequence of events may lead to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from card.serving.supervision.states import (
    EXPENDABLE,
    EXPENDABLE_MODEL,
    LONGEST_PAUSE_S,
    MODEL,
    PROBATION_S,
    SERVICE,
    STUBS,
    Action,
    Event,
    Happening,
    Recovery,
    Repair,
    Service,
)

ESSENTIAL = tuple(model for model in STUBS if model not in EXPENDABLE)


@pytest.mark.parametrize("table", [MODEL, EXPENDABLE_MODEL])
def test_every_state_is_reached_and_left_when_rows_are_followed_from_a_well_model(
    table: dict[tuple[Repair, Event], tuple[Repair, Action]],
) -> None:
    reached, left = {Repair.WELL}, set[Repair]()
    while reached - left:
        state = (reached - left).pop()
        left.add(state)
        after = {target for (source, _), (target, _) in table.items() if source is state}
        assert after, f"nothing ends {state}"
        reached |= after
    assert reached == {state for state, _ in table} | {Repair.WELL}


def test_every_phase_of_the_service_can_stop() -> None:
    for state in Service:
        if state is not Service.STOPPED:
            assert (state, Happening.STOP) in SERVICE


@settings(max_examples=300, deadline=None)
@given(
    model=st.sampled_from(STUBS),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["look well", "look lost", "back", "failed", "stuck"]),
            st.floats(0.05, 90.0),
        ),
        max_size=40,
    ),
)
def test_a_model_is_never_left_lost_and_never_reloaded_without_end_by_any_sequence(
    model: str, steps: list[tuple[str, float]]
) -> None:
    """`failures` counts reloads in a row that did not lead to a steady model."""
    recovery, now_s, failures = Recovery(model), 0.0, 0
    lost_since_s: float | None = None
    for step, after_s in steps:
        now_s += after_s
        running = recovery.state in (Repair.RELOADING, Repair.RELOADING_AGAIN)
        if step.startswith("look"):
            if recovery.is_reloading:
                continue
            lost = step == "look lost"
            if recovery.state is Repair.WELL:
                failures = 0
            action = recovery.see(lost, 0, now_s)
            if not lost:
                assert action is Action.NOTHING
                lost_since_s = None
                continue
            lost_since_s = now_s if lost_since_s is None else lost_since_s
            if action is Action.NOTHING:
                assert recovery.state is Repair.PAUSED
                assert model in EXPENDABLE
        elif running:
            events = {"back": Event.BACK, "failed": Event.FAILED, "stuck": Event.STUCK}
            action = recovery.meet(events[step], now_s)
            failures += step == "failed"
            lost_since_s = None
        else:
            continue
        if action is Action.RESTART_SERVER:
            assert model not in EXPENDABLE
            return
        assert failures < 2 or model in EXPENDABLE


@pytest.mark.parametrize("model", ESSENTIAL)
def test_the_server_restarts_when_two_reloads_in_a_row_fail(model: str) -> None:
    recovery = Recovery(model)
    assert recovery.see(True, 0, 10.0) is Action.RELOAD
    assert recovery.meet(Event.FAILED, 11.0) is Action.RELOAD
    assert recovery.meet(Event.FAILED, 12.0) is Action.RESTART_SERVER


def test_the_server_restarts_when_a_model_dies_in_both_probations() -> None:
    recovery = Recovery("target")
    recovery.see(True, 0, 10.0)
    recovery.meet(Event.BACK, 11.0)
    assert recovery.see(False, 0, 11.0 + PROBATION_S / 2) is Action.NOTHING
    assert recovery.see(True, 0, 11.0 + PROBATION_S) is Action.RELOAD
    recovery.meet(Event.BACK, 13.0)
    assert recovery.see(True, 0, 13.0 + PROBATION_S / 2) is Action.RESTART_SERVER


def test_a_model_that_outlives_its_probation_is_reloaded_as_at_first() -> None:
    recovery, now_s = Recovery("target"), 0.0
    for _ in range(5):
        now_s += 10.0
        assert recovery.see(True, 0, now_s) is Action.RELOAD
        recovery.meet(Event.BACK, now_s + 1.0)


def test_the_server_restarts_when_streams_are_lost_with_a_model() -> None:
    assert Recovery("card").see(True, 2, 0.0) is Action.RESTART_SERVER
    assert Recovery("card").see(True, 0, 0.0) is Action.RELOAD


@pytest.mark.parametrize("model", EXPENDABLE)
def test_an_expendable_model_is_tried_with_growing_pauses_when_it_does_not_come_back(
    model: str,
) -> None:
    recovery, now_s, pauses_s = Recovery(model), 0.0, []
    assert recovery.see(True, 0, now_s) is Action.RELOAD
    assert recovery.meet(Event.FAILED, now_s) is Action.RELOAD
    for _ in range(9):
        assert recovery.meet(Event.FAILED, now_s) is Action.NOTHING
        began_s = now_s
        while recovery.see(True, 0, now_s) is Action.NOTHING:
            now_s += 0.5
        pauses_s.append(now_s - began_s)
    assert pauses_s[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses_s[-1] == LONGEST_PAUSE_S


def test_an_expendable_model_that_only_a_server_can_load_waits_when_streams_are_open() -> None:
    for model, expected in (("draft", Action.NOTHING), ("target", Action.RESTART_SERVER)):
        recovery = Recovery(model)
        recovery.see(True, 0, 0.0)
        assert recovery.meet(Event.STUCK, 1.0) is expected
        assert recovery.is_reloading == (model == "draft")
    draft = Recovery("draft", Repair.AWAITING_CALM)
    assert draft.meet(Event.CALM, 2.0) is Action.RESTART_SERVER

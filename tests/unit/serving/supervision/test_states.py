"""The tables of the state machine, walked at random: what no sequence of events may lead to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from card.serving.supervision.states import (
    EXPENDABLE,
    LONGEST_PAUSE_S,
    PROBATION_S,
    STUBS,
    Action,
    Event,
    Recovery,
    Repair,
)

STEPS = st.tuples(
    st.sampled_from(["seen well", "seen lost", Event.BACK, Event.FAILED, Event.STUCK]),
    st.floats(0.05, 90.0),
)


@given(st.sampled_from(STUBS), st.lists(STEPS, max_size=40))
def test_a_lost_model_is_never_left_alone_whatever_happened_before(
    model: str, steps: list[tuple[str | Event, float]]
) -> None:
    recovery, now_s = Recovery(model), 0.0
    for step, after_s in steps:
        now_s += after_s
        if isinstance(step, Event):
            action = recovery.meet(step, now_s) if recovery.is_reloading else Action.NOTHING
        elif recovery.is_reloading:
            continue
        else:
            action = recovery.see(step == "seen lost", 0, now_s)
            if step == "seen well":
                assert action is Action.NOTHING
            elif action is Action.NOTHING:
                assert recovery.state is Repair.PAUSED
        if action is Action.RESTART_SERVER:
            assert model not in EXPENDABLE
            return


def test_the_server_restarts_when_a_model_dies_in_both_probations() -> None:
    recovery = Recovery("target")
    recovery.see(True, 0, 10.0)
    recovery.meet(Event.BACK, 11.0)
    assert recovery.see(False, 0, 11.0 + PROBATION_S / 2) is Action.NOTHING
    assert recovery.see(True, 0, 11.0 + PROBATION_S) is Action.RELOAD
    recovery.meet(Event.BACK, 13.0)
    assert recovery.see(True, 0, 13.0 + PROBATION_S / 2) is Action.RESTART_SERVER


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

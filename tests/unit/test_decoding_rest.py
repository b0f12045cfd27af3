"""The draft rests while speculation does not pay, and is tried again."""

from __future__ import annotations

import pytest

from card.decoding.rest import DraftRest

HOPELESS, POOR, RICH = 0.6, 1.05, 2.0


def rests(gains: list[float], length: int = 100, loss: float = -1.0) -> list[int]:
    """How long every rest lasts when a session goes on to its end and is judged again."""
    rest, found = DraftRest(), []
    for gain in gains:
        if rest.consider(length, gain, loss):
            found.append(rest.until - length)
            length = rest.until
    return found


def test_a_draft_that_pays_never_rests() -> None:
    assert rests([RICH] * 5) == []


def test_rests_grow_while_drafting_does_not_pay_and_stay_bounded() -> None:
    found = rests([POOR] * 12)
    assert found[:3] == [32, 64, 128]
    assert found[-1] == found[-2] == 1024


def test_a_draft_that_paid_for_long_starts_with_a_short_rest() -> None:
    assert rests([POOR, POOR, *[RICH] * 48, POOR]) == [32, 64, 32]


def test_the_belief_that_a_trial_begins_with_does_not_shorten_the_next_rest() -> None:
    assert rests([POOR, RICH, RICH, POOR, RICH, POOR]) == [32, 64, 128]


@pytest.mark.parametrize("loss", [0.7, 4.0, 10.0])
def test_a_rest_lasts_until_what_was_lost_is_a_hundredth_of_it(loss: float) -> None:
    assert rests([HOPELESS], loss=loss) == [100 * loss]


def test_who_lost_little_or_nothing_has_no_longer_rests() -> None:
    assert rests([POOR] * 3, loss=0.2) == rests([POOR] * 3, loss=-20.0) == [32, 64, 128]


def test_no_loss_however_great_ends_all_trials() -> None:
    assert rests([HOPELESS], loss=1000.0) == [1024]


@pytest.mark.parametrize(("gain", "tokens"), [(POOR, 128), (HOPELESS, 1024)])
def test_a_foreseen_rest_is_a_long_one_where_sessions_before_lost(gain: float, tokens: int) -> None:
    rest = DraftRest()
    rest.foresee(100, gain)
    assert rest.until == 100 + tokens


def test_the_draft_rests_below_the_length_and_no_longer() -> None:
    rest = DraftRest()
    assert not rest.resting(100)
    rest.consider(100, POOR, loss=0.0)
    assert rest.resting(rest.until - 1)
    assert not rest.resting(rest.until)

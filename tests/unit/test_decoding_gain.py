"""What a session gains from its draft is what its passes gave for what they cost."""

from __future__ import annotations

import pytest

from card.decoding.gain import DOUBTED_GAIN, EXPECTED_GAIN, Gain
from card.decoding.rest import pays

COST = 1.5


def passes_until_rest(gain: Gain, chain: list[tuple[int, int]], most: int = 1000) -> int:
    """Passes with these candidates (offered, right), again and again, until it no longer pays."""
    for done in range(most):
        if not pays(gain.rate):
            return done
        offered, right = chain[done % len(chain)]
        gain.observe(offered > 0, right, COST, offered=offered, shared=False)
    return most


def after(*passes: tuple[int, int], times: int = 200, shared: bool = False) -> Gain:
    gain = Gain()
    for _ in range(times):
        for offered, right in passes:
            gain.observe(offered > 0, right, COST, offered=offered, shared=shared)
    return gain


def test_a_draft_is_believed_in_before_anything_is_known() -> None:
    assert Gain().rate == EXPECTED_GAIN
    assert pays(Gain().rate)


def test_tokens_for_what_decoding_alone_pays_for_one() -> None:
    assert after((4, 3), (4, 1)).rate == pytest.approx(3 / COST, rel=0.01)
    assert after((4, 3), (4, 1)).seen.gain == pytest.approx(3 / COST)


def test_what_was_long_ago_fades() -> None:
    assert passes_until_rest(after((8, 8)), [(8, 0)]) < 120


def test_a_poor_draft_is_soon_found_out_and_sooner_the_second_time() -> None:
    gain = Gain()
    first = passes_until_rest(gain, [(4, 0), (0, 0)])
    gain.doubt()
    assert pays(gain.rate), "it would never be tried again"
    assert 1 <= passes_until_rest(gain, [(4, 0), (0, 0)]) < first < 10


def test_every_other_query_that_finds_nothing_is_a_pass_lost() -> None:
    assert pays(after((4, 1)).rate)
    assert not pays(after((4, 1), (0, 0)).rate)


def test_among_others_queries_that_find_nothing_count_for_nothing() -> None:
    assert after((4, 1), (0, 0), shared=True).rate == pytest.approx(after((4, 1)).rate)


def test_among_others_a_draft_whose_candidates_got_no_row_is_not_blamed() -> None:
    gain = after((4, 3))
    before = gain.rate
    for _ in range(100):
        gain.observe(True, 0, 1.0, offered=0, shared=True)
    assert gain.rate == before
    gain.observe(True, 0, 1.0, offered=0, shared=False)
    assert gain.rate < before


def test_a_draft_may_be_late_when_it_begins_and_when_it_is_tried_again() -> None:
    gain = Gain()
    for _ in range(2):
        believed = gain.rate
        for _ in range(32):
            gain.observe(False, 0, COST, offered=0, shared=False)
        assert gain.rate == believed
        assert passes_until_rest(gain, [(0, 0)]) < 10
        gain.doubt()
    assert gain.seen.cost == 0.0, "one that never came teaches nothing"


def test_a_draft_that_was_stopped_may_be_late_once_more() -> None:
    gain = after((4, 3))
    believed = gain.rate
    for _ in range(1000):
        gain.pardon()
        gain.observe(False, 0, COST, offered=0, shared=False)
    assert gain.rate == believed


@pytest.mark.parametrize(
    ("passes", "loss"),
    [
        ([(0, 0)] * 4, 0.0),  # late, as every draft may be
        ([(0, 0)] * 2 + [(4, 0), (0, 0), (4, 2)], 2 * (COST - 1) + COST - 3),
        ([(4, 3)] * 10, 10 * (COST - 4)),
    ],
)
def test_a_trial_lost_what_its_passes_cost_beyond_their_tokens(
    passes: list[tuple[int, int]], loss: float
) -> None:
    gain = after(*passes, times=1)
    assert gain.loss == pytest.approx(loss)
    gain.doubt()
    assert gain.loss == pytest.approx(loss), "the next trial loses more, or makes it good"


@pytest.mark.parametrize("gained", [0.0, 40.0])
def test_a_draft_that_is_stopped_or_dead_loses_nothing(gained: float) -> None:
    gain = Gain()
    gain.loss = -gained
    for _ in range(10):
        gain.pardon()
        gain.observe(False, 0, COST, offered=0, shared=False)
    assert gain.loss == -gained


def test_a_draft_that_has_much_to_read_may_be_late_again_and_keeps_its_account() -> None:
    gain = after((4, 0), times=3)
    lost, rate = gain.loss, gain.rate
    gain.await_again()
    gain.observe(False, 0, COST, offered=0, shared=False)
    assert (gain.loss, gain.rate) == (lost, rate)
    assert lost > 0


@pytest.mark.parametrize(
    ("passes", "believed"),
    [([(4, 3)] * 20, EXPECTED_GAIN), ([(4, 1)] * 20, 2 / COST), ([(4, 0)] * 20, DOUBTED_GAIN)],
)
def test_a_draft_that_paid_on_the_whole_is_doubted_less(
    passes: list[tuple[int, int]], believed: float
) -> None:
    gain = after(*passes, times=1)
    gain.doubt()
    assert gain.rate == pytest.approx(believed)


def test_of_what_many_share_only_what_was_found_and_what_was_late_is_lost() -> None:
    assert after((4, 1), (0, 0), times=10, shared=True).loss == pytest.approx(10 * (COST - 2))


@pytest.mark.parametrize("gain", [1.3, 1.5])
def test_a_session_begins_with_what_it_is_told_to_believe(gain: float) -> None:
    found = Gain()
    found.believe(gain)
    assert found.rate == pytest.approx(gain)

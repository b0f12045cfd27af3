"""How many rows a pass holds follows from what rows cost and how often drafts are right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from card.decoding.rows import (
    UNMEASURED_ROWS,
    Acceptance,
    RowPlan,
    ideal_tokens,
)
from card.engines.row_costs import pass_cost_ms

ROWS = (1, 2, 4, 8, 16, 32)
DEAR = {rows: 4.0 + 0.3 * rows for rows in ROWS}


@given(st.integers(1, 64), st.floats(0, 1))
def test_ideal_tokens_are_what_a_chain_may_expect(rows: int, agreement: float) -> None:
    assert ideal_tokens(rows, agreement) == pytest.approx(sum(agreement**n for n in range(rows)))


def test_rows_that_cost_nothing_are_all_taken() -> None:
    assert RowPlan(dict.fromkeys(ROWS, 5.0)).rows() == 32


def test_rows_that_cost_as_much_as_a_pass_are_not_taken() -> None:
    assert RowPlan({rows: 5.0 * rows for rows in ROWS}).rows() == 1


def test_an_engine_without_a_curve_gets_a_fixed_number() -> None:
    assert RowPlan({}).rows() == UNMEASURED_ROWS


@given(
    st.lists(st.floats(0.01, 3), min_size=len(ROWS), max_size=len(ROWS)),
    st.integers(0, 39),
)
def test_the_chosen_rows_give_most_tokens_per_second(steps: list[float], fortieths: int) -> None:
    agreement = fortieths / 40
    costs = dict(zip(ROWS, np.cumsum(steps).tolist(), strict=True))
    speed = {rows: ideal_tokens(rows, agreement) / cost for rows, cost in costs.items()}
    plan = RowPlan(costs)
    assert speed[plan.rows(agreement)] == max(speed.values())
    assert plan.gain(agreement) == pytest.approx(max(speed.values()) / speed[1])


def test_better_agreement_never_asks_for_fewer_rows() -> None:
    chosen = [RowPlan(DEAR).rows(agreement) for agreement in np.linspace(0, 0.99, 30)]
    assert chosen == sorted(chosen)
    assert chosen[0] == 1
    assert chosen[-1] > 4


def test_sessions_that_share_a_pass_share_its_rows() -> None:
    chosen = [RowPlan(DEAR).rows(sessions=sessions) for sessions in (1, 2, 4, 8, 16)]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[-1] < chosen[0]


@given(
    st.lists(st.floats(0.01, 3), min_size=len(ROWS), max_size=len(ROWS)),
    st.lists(st.floats(0, 1), max_size=40),
)
def test_of_a_chain_as_much_is_verified_as_gives_most_tokens_per_second(
    steps: list[float], factors: list[float]
) -> None:
    costs = dict(zip(ROWS, np.cumsum(steps).tolist(), strict=True))
    chances = np.cumprod(factors).tolist()
    speed = {
        min(rows - 1, len(chances)): (1 + sum(chances[: rows - 1])) / cost
        for rows, cost in reversed(costs.items())
    }
    (chosen,) = RowPlan(costs).worthwhile([chances])
    assert speed[chosen] == pytest.approx(max(speed.values()))


def test_a_chain_is_cut_where_it_gets_unlikely_and_shorter_among_many() -> None:
    plan = RowPlan(DEAR)
    sure, unsure = [0.95**n for n in range(1, 32)], [0.5**n for n in range(1, 32)]
    assert plan.worthwhile([sure]) > plan.worthwhile([unsure]) > [0]
    assert max(plan.worthwhile([sure] * 8)) < plan.worthwhile([sure])[0]
    assert plan.worthwhile([[]]) == [0]
    assert RowPlan({}).worthwhile([unsure, sure]) == [31, 31], "nothing is known of costs"
    assert RowPlan({}).worthwhile([unsure, sure], most_rows=12) == [0, 10], "the likeliest of all"
    assert RowPlan({}).worthwhile([unsure, sure], most_rows=1) == [0, 0], "each has a row"
    assert (plan.most_rows(), plan.most_rows(8), plan.most_rows(64)) == (32, 16, 2)


def test_sessions_that_share_a_pass_give_its_rows_to_the_likeliest_of_all() -> None:
    plan = RowPlan(DEAR)
    sure, unsure = [0.98**n for n in range(1, 32)], [0.3**n for n in range(1, 32)]
    assert plan.worthwhile([]) == []
    first, second, third = plan.worthwhile([unsure, sure, []])
    assert first < 3 < second
    assert third == 0
    assert 3 + first + second in ROWS, "a pass is filled up"


@given(
    st.lists(st.floats(0.01, 3), min_size=len(ROWS), max_size=len(ROWS)),
    st.lists(st.lists(st.floats(0, 1), max_size=12), min_size=1, max_size=6),
)
def test_what_is_shared_gives_most_tokens_per_second_of_all_ways_to_fill_a_pass(
    steps: list[float], factors: list[list[float]]
) -> None:
    costs = dict(zip(ROWS, np.cumsum(steps).tolist(), strict=True))
    chains = [np.cumprod(chain).tolist() for chain in factors]
    every = sorted((chance for chain in chains for chance in chain), reverse=True)
    given_rows = len(chains)
    best = max(
        (given_rows + sum(every[: rows - given_rows])) / cost
        for rows, cost in costs.items()
        if rows >= given_rows
    )
    counts = RowPlan(costs).worthwhile(chains)
    gives = given_rows + sum(
        sum(chain[:count]) for chain, count in zip(chains, counts, strict=True)
    )
    rows = next(rows for rows in ROWS if rows >= given_rows + sum(counts))
    assert gives / costs[rows] == pytest.approx(best)


@pytest.mark.parametrize("sessions", [48, 63, 64, 65, 200])
def test_more_sessions_than_any_measured_pass_has_rows_verify_where_rows_cost_nothing(
    sessions: int,
) -> None:
    plan = RowPlan({rows: 5 + 0.001 * rows for rows in (1, 2, 4, 8, 16, 32, 64)})
    assert plan.worthwhile([[0.9]] * sessions) == [1] * sessions
    dear = RowPlan({rows: float(rows) for rows in (1, 2, 4, 8, 16, 32, 64)})
    padding = max(0, 64 - sessions)
    assert sum(dear.worthwhile([[0.9]] * sessions)) == padding


def test_a_draft_that_is_never_right_is_soon_not_worth_a_row() -> None:
    acceptance, plan = Acceptance(), RowPlan(DEAR)
    assert plan.rows(acceptance.rate) > 4
    passes = 0
    while plan.rows(acceptance.rate) > 1:
        acceptance.observe(accepted=0, offered=7)
        passes += 1
    assert passes < 200
    assert plan.gain(acceptance.rate) == 1.0


def test_a_pass_is_reckoned_in_passes_of_decoding_alone() -> None:
    plan = RowPlan({1: 4.0, 8: 6.0}, alone_share=0.5)
    assert (plan.cost(1), plan.cost(8)) == (2.0, 3.0)
    assert RowPlan({}).cost(8) == 1.0, "nothing is known of costs"


def test_acceptance_counts_what_was_judged_and_no_more() -> None:
    """Behind a wrong candidate nothing is known of the others."""
    acceptance = Acceptance()
    for _ in range(300):
        acceptance.observe(accepted=3, offered=7)
    assert acceptance.rate == pytest.approx(0.75, abs=0.01)
    for _ in range(300):
        acceptance.observe(accepted=7, offered=7)
    assert acceptance.rate == pytest.approx(1.0, abs=0.01)
    for _ in range(10):
        acceptance.observe(accepted=0, offered=0)
    assert acceptance.rate == pytest.approx(1.0, abs=0.01)


def test_old_luck_fades() -> None:
    acceptance = Acceptance()
    for _ in range(1000):
        acceptance.observe(accepted=8, offered=8)
    for _ in range(200):
        acceptance.observe(accepted=0, offered=8)
    assert acceptance.rate < 0.2


@given(st.integers(1, 32))
def test_a_pass_between_two_measured_ones_costs_something_between(rows: int) -> None:
    assert pass_cost_ms(DEAR, rows) == pytest.approx(4.0 + 0.3 * rows)


def test_beyond_the_curve_a_row_costs_what_it_cost_on_average() -> None:
    assert pass_cost_ms({1: 2.0, 3: 3.0, 5: 6.0}, 9) == pytest.approx(10.0)
    assert pass_cost_ms({1: 2.0, 5: 1.0}, 9) == 1.0
    assert pass_cost_ms({4: 2.0}, 9) == 2.0


def test_guesses_of_one_session_gain_what_the_cores_of_a_resting_draft_bring() -> None:
    plan = RowPlan({1: 4.0, 8: 6.0}, alone_share=0.5)
    assert plan.gain_of_text(0.9) == 2 * plan.gain(0.9)
    assert plan.gain_of_text(0.9, 2) == plan.gain(0.9, 2), "others' drafts compute on"

"""How many rows a pass holds follows from what rows cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from card.decoding import choose_rows, ideal_tokens
from card.decoding.rows import UNMEASURED_ROWS

ROWS = (1, 2, 4, 8, 16, 32)


@given(st.integers(1, 64), st.floats(0, 1))
def test_ideal_tokens_are_what_a_chain_may_expect(rows: int, agreement: float) -> None:
    assert ideal_tokens(rows, agreement) == pytest.approx(sum(agreement**n for n in range(rows)))


def test_rows_that_cost_nothing_are_all_taken() -> None:
    assert choose_rows(dict.fromkeys(ROWS, 5.0)) == 32


def test_rows_that_cost_as_much_as_a_pass_are_not_taken() -> None:
    assert choose_rows({rows: 5.0 * rows for rows in ROWS}) == 1


def test_an_engine_without_a_curve_gets_a_fixed_number() -> None:
    assert choose_rows({}) == UNMEASURED_ROWS


@given(
    st.lists(st.floats(0.01, 3), min_size=len(ROWS), max_size=len(ROWS)),
    st.floats(0, 0.99),
)
def test_the_chosen_rows_give_most_tokens_per_second(steps: list[float], agreement: float) -> None:
    costs = dict(zip(ROWS, np.cumsum(steps).tolist(), strict=True))
    speed = {rows: ideal_tokens(rows, agreement) / cost for rows, cost in costs.items()}
    assert speed[choose_rows(costs, agreement=agreement)] == max(speed.values())


def test_better_agreement_never_asks_for_fewer_rows() -> None:
    costs = {rows: 4.0 + 0.3 * rows for rows in ROWS}
    chosen = [choose_rows(costs, agreement=a) for a in np.linspace(0, 0.99, 30)]
    assert chosen == sorted(chosen)
    assert chosen[0] == 1
    assert chosen[-1] > 4


def test_sessions_that_share_a_pass_share_its_rows() -> None:
    costs = {rows: 4.0 + 0.3 * rows for rows in ROWS}
    chosen = [choose_rows(costs, sessions) for sessions in (1, 2, 4, 8, 16)]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[-1] < chosen[0]

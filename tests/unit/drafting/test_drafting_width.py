"""How many nodes a draft pass expands follows from what rows cost and what nodes promise."""

from __future__ import annotations

import math

import pytest
from fake_engine import FakeEngine, FakeModel
from hypothesis import given
from hypothesis import strategies as st
from one_process import OneProcess, autoregressive, request_of, settings_of

from card.speculation.drafters.growth.width import Width

MODEL = FakeModel()
ROWS = (1, 2, 4, 8)
FREE = dict.fromkeys(ROWS, 1.0)
DEAR = {rows: rows**1.2 for rows in ROWS}

chances = st.lists(st.floats(0.001, 1), min_size=1, max_size=12).map(
    lambda found: sorted(found, reverse=True)
)
curves = st.lists(st.floats(0.1, 5), min_size=len(ROWS), max_size=len(ROWS)).map(
    lambda found: dict(zip(ROWS, sorted(found), strict=True))
)


def scores_of(found: list[float], exponent: float = 3.0) -> list[float]:
    return [exponent * math.log(chance) for chance in found]


@given(curves, chances)
def test_no_other_measured_number_of_rows_promises_more_for_its_time(
    costs_ms: dict[int, float], found: list[float]
) -> None:
    chosen = Width(costs_ms).worthwhile(scores_of(found), 3.0)
    rates = {min(rows, len(found)): sum(found[:rows]) / costs_ms[rows] for rows in ROWS[::-1]}
    assert rates[chosen] == pytest.approx(max(rates.values()))


def test_where_rows_are_dear_a_certain_path_grows_alone_and_an_open_tree_grows_wide() -> None:
    certain, unsure = [0.9, 0.05, 0.03, 0.02], [0.3] * 4
    dear = {1: 1.0, 2: 1.3, 4: 1.9}
    assert Width(dear).worthwhile(scores_of(certain), 3.0) == 1
    assert Width(dear).worthwhile(scores_of(unsure), 3.0) == 4


def test_sessions_that_share_a_pass_pay_for_each_others_rows() -> None:
    costs_ms = {1: 1.0, 2: 1.0, 4: 1.0, 8: 4.0}
    assert Width(costs_ms).worthwhile(scores_of([0.3] * 4), 3.0) == 4
    assert Width(costs_ms, sharing=2).worthwhile(scores_of([0.3] * 4), 3.0) == 2


def test_where_every_chance_is_too_small_for_a_number_a_pass_is_not_empty() -> None:
    """Scores add up for as long as a tree is never begun anew."""
    costs_ms = {1: 1.0, 2: 1.3, 4: 1.9}
    assert Width(costs_ms).worthwhile([-1e5] * 4, 3.0) == 4


def test_without_a_curve_all_nodes_are_worth_it() -> None:
    assert Width({}).worthwhile(scores_of([0.9, 0.001, 0.001]), 3.0) == 3


@pytest.mark.parametrize(
    ("costs_ms", "rows", "widest"),
    [(FREE, "auto", 4), (DEAR, "auto", 1), (DEAR, 8, 4), ({}, "auto", 4)],
)
@pytest.mark.parametrize("growth", ["best_first", "layered"])
def test_a_pass_expands_what_is_worth_its_rows_and_leaves_the_rest_for_later(
    costs_ms: dict[int, float], rows: int | str, widest: int, growth: str
) -> None:
    target, draft = FakeEngine(MODEL, tree=False), FakeEngine(MODEL, tree=True)
    draft.row_costs_ms = costs_ms
    config = settings_of(width=4, rows=rows, growth=growth, lookahead=0, depth=6)
    request = request_of([3, 1, 4], 20)
    with OneProcess(target, draft, config) as both:
        stream = both.open(request)
        for _ in range(12):
            both.draft.step()
        grown = [len(rows.tokens) for (rows,) in draft.batches[1:]]
        assert max(grown) == widest
        assert both.run([stream]) == [autoregressive(MODEL, request)]

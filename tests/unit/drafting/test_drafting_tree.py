"""The growing tree against a naive model of it, the rules of growth, and how wide it grows."""

from __future__ import annotations

import math

import pytest
from fake_engine import FakeEngine, FakeModel
from hypothesis import given
from hypothesis import strategies as st
from one_process import OneProcess, autoregressive, request_of, settings_of

from card.engines.interface import CostCurve
from card.speculation.drafters.draft_pass import worthwhile
from card.speculation.drafters.growth import GROWTHS, UNEXPANDED, GrowthConfig, TreeView
from card.speculation.drafters.interface import GrowingTree

tokens = st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True)


# --- growth ---------------------------------------------------------------------------------

nodes = st.lists(
    st.tuples(st.floats(-9, 0), st.integers(0, 6), st.booleans()), min_size=1, max_size=30
)


def take(growth: str, found: list[tuple[float, int, bool]], width: int, depth: int) -> list[int]:
    """Which of nodes (score, depth, whether it was expanded meanwhile) are expanded next."""
    frontier = GROWTHS[growth](GrowthConfig())
    for node, (score, layer, _) in enumerate(found):
        frontier.push(node, score, layer)
    entry = [0 if expanded else UNEXPANDED for _, _, expanded in found]
    return frontier.take(TreeView(GrowingTree(64), entry, [], []), width, depth)


def open_nodes(found: list[tuple[float, int, bool]], depth: int) -> list[tuple[float, int]]:
    return [(score, at) for score, at, expanded in found if not expanded and at < depth - 1]


@given(nodes, st.integers(1, 8), st.integers(1, 8))
def test_best_first_expands_the_likeliest_nodes_wherever_they_are(
    found: list[tuple[float, int, bool]], width: int, depth: int
) -> None:
    scores = [found[node][0] for node in take("best_first", found, width, depth)]
    assert scores == sorted((score for score, _ in open_nodes(found, depth)), reverse=True)[:width]


@given(nodes, st.integers(1, 8), st.integers(1, 8))
def test_layered_growth_expands_the_likeliest_of_the_newest_layer(
    found: list[tuple[float, int, bool]], width: int, depth: int
) -> None:
    scores = [found[node][0] for node in take("layered", found, width, depth)]
    candidates = open_nodes(found, depth)
    newest = max((at for _, at in candidates), default=0)
    layer = sorted((score for score, at in candidates if at == newest), reverse=True)
    assert scores == layer[:width]


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
    chosen = worthwhile(CostCurve(costs_ms), scores_of(found), 3.0)
    rates = {min(rows, len(found)): sum(found[:rows]) / costs_ms[rows] for rows in ROWS[::-1]}
    assert rates[chosen] == pytest.approx(max(rates.values()))


def test_sessions_that_share_a_pass_pay_for_each_others_rows() -> None:
    costs_ms = {1: 1.0, 2: 1.0, 4: 1.0, 8: 4.0}
    assert worthwhile(CostCurve(costs_ms), scores_of([0.3] * 4), 3.0) == 4
    assert worthwhile(CostCurve(costs_ms).shared(2), scores_of([0.3] * 4), 3.0) == 2


def test_where_every_chance_is_too_small_for_a_number_a_pass_is_not_empty() -> None:
    """Scores add up for as long as a tree is never begun anew."""
    costs_ms = {1: 1.0, 2: 1.3, 4: 1.9}
    assert worthwhile(CostCurve(costs_ms), [-1e5] * 4, 3.0) == 4


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
    config = settings_of(width=4, rows=rows, growth=growth, ngram_tokens=0, depth=6)
    request = request_of([3, 1, 4], 20)
    with OneProcess(target, draft, config) as both:
        stream = both.open(request)
        for _ in range(12):
            both.draft.step()
        grown = [len(rows.tokens) for (rows,) in draft.batches[1:]]
        assert max(grown) == widest
        assert both.run([stream]) == [autoregressive(MODEL, request)]

"""The growing tree against a naive model of it, the rules of growth, and how wide it grows."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine, FakeModel
from hypothesis import given
from hypothesis import strategies as st
from one_process import OneProcess, autoregressive, request_of, settings_of

from card.speculation.drafters.growth import GROWTHS, UNEXPANDED, GrowthConfig, TreeView
from card.speculation.drafters.interface import GrowingTree

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

"""Which levels of drafts pay, and with what parcels."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planning.hierarchy import Ladder, Level, every_ladder, tokens_of_a_parcel
from planning.report import advice_on

NAMES = ("n-grams", "draft_small", "draft", "target")


def levels_of(*pass_ms: float) -> list[Level]:
    """N-grams for nothing, and levels whose passes cost so much, whatever their rows."""
    models = [Level(name, {1: ms, 32: ms}) for name, ms in zip(NAMES[1:], pass_ms, strict=True)]
    return [Level(NAMES[0], {}), *models]


def test_a_parcel_passes_the_tokens_before_the_first_wrong_one_and_another() -> None:
    assert tokens_of_a_parcel(0.0, 7) == 1.0
    assert tokens_of_a_parcel(1.0, 7) == 8.0
    assert tokens_of_a_parcel(0.5, 2) == 1.75


def test_at_once_the_longer_of_both_counts() -> None:
    draft, target = Level("draft", {1: 2.0}), Level("target", {1: 10.0, 32: 10.0})
    found, _ = every_ladder([draft, target], {("draft", "target"): 1.0}, at_once=True)
    assert found.parcels == (5,), "as many tokens as the draft writes while the target computes"
    assert found.ms_per_token == pytest.approx(10.0 / 6)


shares = st.floats(0.0, 1.0)
costs = st.floats(0.1, 10.0)


def by_force(
    levels: list[Level], agreements: dict[tuple[str, str], float], parcels: range
) -> float:
    """The least over all choices of levels and parcels, each computed from the bottom up."""
    *below, last = levels
    best = last.pass_ms(1)
    for count in range(1, len(below) + 1):
        for chosen in combinations(below, count):
            for lengths in product(parcels, repeat=count):
                ms = chosen[0].pass_ms(1)
                for one, other, length in zip(chosen, [*chosen[1:], last], lengths, strict=True):
                    passed = tokens_of_a_parcel(agreements[one.name, other.name], length)
                    ms = (length * ms + other.pass_ms(length + 1)) / passed
                best = min(best, ms)
    return best


@settings(max_examples=30, deadline=None)
@given(costs, costs, costs, st.tuples(*[shares] * 6))
def test_the_first_is_the_best_of_all_levels_and_parcels(
    small_ms: float, draft_ms: float, target_ms: float, found: tuple[float, ...]
) -> None:
    levels = levels_of(small_ms, draft_ms, target_ms)
    agreements = dict(zip(combinations(NAMES, 2), found, strict=True))
    ladders = every_ladder(levels, agreements, range(1, 5))
    best_ms = by_force(levels, agreements, range(1, 5))
    assert ladders[0].ms_per_token == pytest.approx(best_ms)
    assert len(ladders) == 8


def test_a_level_that_pays_is_in_the_settings() -> None:
    agreements = dict(zip(combinations(NAMES, 2), [0.3, 0.3, 0.3, 0.95, 0.9, 0.95], strict=True))
    ladders = every_ladder(levels_of(0.1, 2.0, 20.0), agreements)
    best = ladders[0]
    assert isinstance(best, Ladder)
    assert best.levels == NAMES
    lookahead, parcel, gamma = best.parcels
    advice = advice_on(ladders)
    assert f"drafter: hierarchy, lookahead: {lookahead}, parcel: {parcel}, gamma: {gamma}" in advice
    assert "faster than with a level less" in advice


def test_that_a_level_less_is_faster_is_said_with_what_it_costs() -> None:
    agreements = dict(zip(combinations(NAMES, 2), [0.0, 0.0, 0.0, 0.1, 0.1, 0.9], strict=True))
    ladders = every_ladder(levels_of(0.5, 2.0, 20.0), agreements)
    assert ladders[0].levels == ("draft", "target")
    (longer,) = (one for one in ladders if one.levels == ("draft_small", "draft", "target"))
    loss = longer.ms_per_token / ladders[0].ms_per_token - 1
    wanted = f"A level less is faster: draft_small → draft → target takes {loss:.1%} longer."
    assert wanted in advice_on(ladders)

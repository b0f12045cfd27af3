"""Which levels of drafts pay, and with what parcels."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from card.speculation.control.costs import CONTENTION
from card.speculation.pacing import PACINGS
from planning.hierarchy import (
    PARCELS,
    Ladder,
    Level,
    every_ladder,
    tokens_of_a_parcel,
    way_of,
)
from planning.report import advice_on

NAMES = ("n-grams", "draft_small", "draft", "target")


def levels_of(*pass_ms: float) -> list[Level]:
    """N-grams for nothing, and levels whose passes cost so much, whatever their rows."""
    models = [Level(name, {1: ms, 32: ms}) for name, ms in zip(NAMES[1:], pass_ms, strict=True)]
    return [Level(NAMES[0], {}), *models]


# Beside a draft at work a pass of it takes 10 ms.
TARGET = Level("target", {1: 10.0 / CONTENTION, 32: 10.0 / CONTENTION})


@pytest.mark.parametrize("pacing", ["pearl", "card"])
def test_behind_a_refusal_the_draft_begins_anew_though_nobody_waited_for_it(pacing: str) -> None:
    """A pass gives 1 token and the draft 2 meanwhile. Half of the time the first is that token: the
    next passes review the other one, and go on so a quarter of the time."""
    ms = way_of(PACINGS[pacing])(5.0, TARGET, 0.5, 2)
    assert ms == pytest.approx((10 + 0.5 * 10 * 4 / 3) / (1 + 0.5 * 1.5 * 4 / 3))


@pytest.mark.parametrize("pacing", ["pearl", "card"])
@pytest.mark.parametrize("draft_ms", [0.3, 2.0, 4.0])
def test_no_text_comes_faster_than_the_draft_writes_it(pacing: str, draft_ms: float) -> None:
    way = way_of(PACINGS[pacing])
    assert min(way(draft_ms, TARGET, 1.0, parcel) for parcel in PARCELS) >= 0.99 * draft_ms


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
    ngram_tokens, parcel, gamma = best.parcels
    advice = advice_on(ladders)
    said = f"ngram_tokens: {ngram_tokens}, parcel: {parcel}, num_draft_tokens: {gamma}"
    assert f"drafter: hierarchy, {said}" in advice
    assert "faster than with a level less" in advice

"""A smaller draft writes parcels that the draft reviews."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fake_engine import FakeEngine, FakeModel, fake
from one_process import OneProcess, request_of, settings_of

from card.cache import ROOT, Tree
from card.sampling import SamplingParameters

MODEL = FakeModel()
PARCEL = 4
SAMPLED = SamplingParameters(temperature=0.8, seed=5)


@contextmanager
def ladder(small: FakeModel, **speculation: Any) -> Iterator[tuple[OneProcess, FakeEngine]]:
    """Target and draft agree; and the engine of the smaller draft."""
    target, draft = FakeEngine(MODEL, tree=False), FakeEngine(MODEL, tree=True)
    settings = settings_of(
        drafter="hierarchy", growth="layered", width=1, parcel=PARCEL, **speculation
    )
    with OneProcess(target, draft, settings) as both:
        engine = FakeEngine(small, tree=True)
        both.restart_draft(draft, engine)
        yield both, engine


def height_of(tree: Tree) -> int:
    """Nodes of the longest path."""
    depth: list[int] = []
    for parent in tree.parent:
        depth.append(1 if parent == ROOT else depth[parent] + 1)
    return max(depth)


def rows_of(engine: FakeEngine) -> list[int]:
    """Of every pass of one session."""
    return [len(rows.tokens) for batch in engine.batches for rows in batch]


@pytest.mark.parametrize("parameters", [SamplingParameters(), SAMPLED])
def test_one_pass_of_the_draft_reviews_a_parcel(parameters: SamplingParameters) -> None:
    with ladder(MODEL) as (both, small):
        stream = both.open(request_of([1, 2, 3], 30, parameters=parameters))
        slot = both.pool.target_slot(stream.slot.index)
        slot.adopt(stream.session_id)
        for passes in (1, 2, 3):
            assert both.draft.step()
            assert rows_of(fake(both.draft_engine))[1:] == [1 + PARCEL] * (passes - 1)
            assert len(small.batches) == passes * PARCEL
            tree = slot.tree(stream.session_id, MODEL.vocabulary)
            assert tree is not None
            assert height_of(tree) == passes * (1 + PARCEL)


def test_a_parcel_for_the_draft_is_one_that_the_draft_has_passed() -> None:
    """Draft-then-verify waits for γ tokens, not for γ passes of so many."""
    with ladder(MODEL) as (both, _):
        stream = both.open(request_of([1, 2, 3], 40, "draft_then_verify", gamma=PARCEL + 1))
        both.run([stream], draft_steps=4)
        assert len(fake(both.draft_engine).batches) <= stream.counters.steps + 1

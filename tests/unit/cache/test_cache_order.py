"""Records first, counts and flags last: a reader between any two stores sees no half of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from watched_record import Look, WatchedRecord

from card.cache import (
    CardSlot,
    DraftSlot,
    Finish,
    Geometry,
    Pool,
    SlotRequest,
    SlotState,
    TargetSlot,
    Tree,
)
from card.cache.header import Record
from card.sampling import SamplingParameters

GEOMETRY = Geometry(slots=1, nodes=64, prompt=16, output=16, bad_words=4, bad_word_tokens=8)
VOCABULARY = 100
OLD, NEW = 6, 7


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    pool = Pool.create(tmp_path, 1, GEOMETRY)
    yield pool
    pool.unlink()


def watched(pool: Pool, look: Look) -> Any:
    return WatchedRecord(Record(pool.slots, 0), look)


def nodes(first_token: int, count: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    index = np.arange(count)
    return first_token + index, index // 2 - 1, -0.5 - index


def as_lists(tree: Tree | None) -> tuple[int, list[int], list[int], list[float]] | None:
    if tree is None:
        return None
    return tree.root_length, tree.token, tree.parent, tree.score


def test_a_tree_is_seen_as_it_was_or_as_it_is(pool: Pool) -> None:
    target = pool.target_slot(0)
    seen: list[object] = []
    draft = DraftSlot(watched(pool, lambda: seen.append(as_lists(target.tree(NEW, 100)))), 0)
    for length, first, more in ((3, 5, 9), (4, 7, 2), (6, 0, 12), (9, 20, 1)):
        token, parent, score = nodes(length, first + more)
        before = as_lists(target.tree(NEW, VOCABULARY))
        seen.clear()
        draft.replace(NEW, length, token[:first], parent[:first], score[:first])
        after = (length, token[:first].tolist(), parent[:first].tolist(), score[:first].tolist())
        assert all(tree in (before, after) for tree in seen)
        assert seen[-1] == after
        seen.clear()
        draft.append(token[first:], parent[first:], score[first:], 1)
        grown = (length, token.tolist(), parent.tolist(), score.tolist())
        assert all(tree in (after, grown) for tree in seen)
        assert seen[-1] == grown


def test_passes_are_reported_with_the_nodes_they_gave(pool: Pool) -> None:
    """A target that waits for gamma passes finds all that they gave."""
    target = pool.target_slot(0)

    def look() -> None:
        if target.draft_progress(NEW, 3).passes:
            tree = target.tree(NEW, VOCABULARY)
            assert tree is not None
            assert len(tree.token) == 9

    draft = DraftSlot(watched(pool, look), 0)
    token, parent, score = nodes(1, 9)
    draft.replace(NEW, 3, token[:5], parent[:5], score[:5])
    draft.append(token[5:], parent[5:], score[5:], 1)
    assert target.draft_progress(NEW, 3).passes == 1
    draft.replace(NEW, 3, *nodes(1, 0))
    assert target.draft_progress(NEW, 3).passes == 0


def test_a_commit_is_seen_whole_or_not_at_all(pool: Pool) -> None:
    card = pool.card_slot(0)
    whole = [(4, True, -0.5), (5, False, -1.5), (6, True, -2.5), (7, True, -3.5)]

    def look() -> None:
        count, finish = card.committed(NEW), card.finish(NEW)
        columns = (card.output(0, 4), card.is_accepted(0, 4), card.log_probabilities(0, 4))
        read = list(zip(*(column.tolist() for column in columns), strict=True))
        assert read[:count] == whole[:count]
        assert (count, finish) in [(0, Finish.RUNNING), (2, Finish.RUNNING), (4, Finish.END_ID)]

    pool.target_slot(0).adopt(NEW)
    target = TargetSlot(watched(pool, look), 0, pool.commit_bell)
    target.commit([4, 5], [True, False], [-0.5, -1.5], Finish.RUNNING)
    target.commit([6, 7], [True, True], [-2.5, -3.5], Finish.END_ID)
    assert card.committed(NEW) == 4


def test_an_adoption_never_shows_what_an_older_session_left(pool: Pool) -> None:
    card = pool.card_slot(0)
    looks = []

    def look() -> None:
        looks.append((card.committed(NEW), card.finish(NEW)))

    old = pool.target_slot(0)
    old.adopt(OLD)
    old.commit([1, 2, 3], [True] * 3, [0.0] * 3, Finish.LENGTH)
    assert TargetSlot(watched(pool, look), 0, pool.commit_bell).adopt(NEW) == 0
    assert len(looks) > 3
    assert set(looks) == {(0, Finish.RUNNING)}


def test_a_slot_is_open_only_once_the_whole_request_stands(pool: Pool) -> None:
    engine = pool.target_slot(0)
    looks = []
    parameters = SamplingParameters(
        0.7, 5, 0.9, 0.1, 1.1, 0.2, 0.3, 4, ((1, 2), (3,)), ((4, -1.5),), 1 << 63, (9, 7)
    )
    request = SlotRequest(np.arange(7), 8, "draft_then_verify", parameters, 3, True)

    def look() -> None:
        looks.append(engine.is_open(NEW))
        if looks[-1]:
            found = engine.request()
            assert found.prompt.tolist() == request.prompt.tolist()
            assert found.parameters == parameters
            assert found.num_draft_tokens == 3

    CardSlot(watched(pool, look), 0, pool.slot_bell).open(request, NEW)
    assert engine.state is SlotState.OPEN
    assert looks.count(True) == 1
    assert looks[-1]

"""Steps that the target tells of: `card` reads each once, or sees that some are gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_process import request_of

from card.cache import STEPS_KEPT, Candidates, CardSlot, Finish, Geometry, Pool, Step, TargetSlot

GEOMETRY = Geometry(slots=1, nodes=64, prompt=8, output=512, bad_words=1, bad_word_tokens=1)


@pytest.fixture
def opened(tmp_path: Path) -> tuple[CardSlot, TargetSlot, int]:
    pool = Pool.create(tmp_path, 1, GEOMETRY)
    card, target = pool.card_slot(0), pool.target_slot(0)
    card.open(request_of([5, 6], 512), session_id := pool.new_session_id())
    target.adopt(session_id)
    return card, target, session_id


def step(target: TargetSlot, candidates: list[int], accepted: int) -> None:
    """Tell of a step that accepts so many of a chain, and commit its tokens."""
    tokens = [*candidates[:accepted], 99]
    chain = Candidates.chain(candidates, [])
    target.trace(Step(chain, len(candidates) - 1, accepted, len(tokens), queried_ns=7))
    target.commit(tokens, [True] * accepted + [False], [0.0] * len(tokens), Finish.RUNNING)


def test_a_step_is_read_once_as_it_was_told(opened: tuple[CardSlot, TargetSlot, int]) -> None:
    card, target, session_id = opened
    step(target, [1, 2, 3], 2)
    step(target, [4], 0)
    (first, second), following = card.steps(session_id, 0)
    assert first.candidates == Candidates.chain([1, 2, 3], [])
    assert (first.drafted, first.accepted, first.committed, first.behind) == (2, 2, 3, 0)
    assert (second.accepted, second.committed, second.behind) == (0, 1, 3)
    assert first.queried_ns == 7 < first.committed_ns <= second.committed_ns
    step(target, [8, 9], 1)
    (third,), _ = card.steps(session_id, following)
    assert (third.candidates.tokens, third.behind) == ([8, 9], 4)


def test_who_looks_too_seldom_gets_the_latest(opened: tuple[CardSlot, TargetSlot, int]) -> None:
    card, target, session_id = opened
    for token in range(STEPS_KEPT + 10):
        step(target, [token], 0)
    found, following = card.steps(session_id, 3)
    assert following == STEPS_KEPT + 10
    # The oldest place is the one that the target may be writing.
    assert [one.candidates.tokens for one in found] == [[n] for n in range(11, STEPS_KEPT + 10)]


def test_steps_of_an_older_session_are_not_read(opened: tuple[CardSlot, TargetSlot, int]) -> None:
    card, target, session_id = opened
    step(target, [1], 1)
    target.adopt(session_id + 1)
    assert card.steps(session_id, 0) == ([], 0)
    assert card.steps(session_id + 1, 0) == ([], 0)

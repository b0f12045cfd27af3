"""A target of an older epoch that wakes up and commits is heard by nobody."""

from __future__ import annotations

from pathlib import Path

from one_process import request_of

from card.cache import Finish, Geometry, Pool, SlotState

GEOMETRY = Geometry(slots=1, nodes=64, prompt=32, output=32, bad_words=4, bad_word_tokens=16)
SERVER = 4242


def commit(pool: Pool, tokens: list[int]) -> None:
    flags, scores = [False] * len(tokens), [0.0] * len(tokens)
    pool.target_slot(0).commit(tokens, flags, scores, Finish.RUNNING)


def engine_of(directory: Path) -> Pool:
    """The pool as another process has it, mapped for as long as that lives."""
    pool = Pool.open(directory, SERVER, GEOMETRY)
    assert pool is not None
    return pool


def test_commits_of_an_older_epoch_are_ignored(tmp_path: Path) -> None:
    first = Pool.create(tmp_path, SERVER, GEOMETRY)
    old = first.new_session_id()
    first.card_slot(0).open(request_of([1, 2], 20), old)
    sleeper = engine_of(tmp_path)
    sleeper.target_slot(0).adopt(old)
    commit(sleeper, [11, 12])
    first.close()

    second = Pool.create(tmp_path, SERVER, GEOMETRY)
    slot = second.card_slot(0)
    assert slot.state is SlotState.CLOSED
    assert not slot.reclaim(target_is_dead=False), "it may still write: the slot is kept"
    commit(sleeper, [13])
    assert slot.reclaim(target_is_dead=True)
    new = second.new_session_id()
    slot.open(request_of([3, 4], 20), new)
    commit(sleeper, [14, 15])
    assert slot.committed(new) == 0
    assert slot.finish(new) is Finish.RUNNING
    assert not sleeper.target_slot(0).is_open(old), "and it sees that nobody wants its session"

    successor = engine_of(tmp_path)
    assert successor.target_slot(0).adopt(new) == 0
    commit(successor, [21])
    assert slot.output(0, slot.committed(new)).tolist() == [21]

"""Hidden states in the ring of a slot: read whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from watched_record import WatchedRecord

from card.cache import DraftSlot, Geometry, Pool, States, TargetSlot
from card.cache.header import Record

PLACES, NUMBERS = 8, 6
WITHOUT = Geometry(slots=1, nodes=64, prompt=64, output=64, bad_words=1, bad_word_tokens=1)
GEOMETRY = replace(WITHOUT, state_tokens=PLACES, state_numbers=NUMBERS)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    pool = Pool.create(tmp_path_factory.mktemp("pool"), 1, GEOMETRY)
    yield pool
    pool.unlink()


def states_of(positions: range, text: int = 0) -> States:
    """States that tell position and text."""
    rows = [[position, text, *range(NUMBERS - 2)] for position in positions]
    return np.array(rows, np.uint16).reshape(len(positions), NUMBERS)


def adopted(pool: Pool) -> tuple[TargetSlot, DraftSlot, int]:
    target, session_id = pool.target_slot(0), pool.new_session_id()
    target.adopt(session_id)
    return target, pool.draft_slot(0), session_id


def positions_read(draft: DraftSlot, session_id: int, start: int, text: int = 0) -> range:
    """The positions that the draft reads; their states are checked."""
    first, found = draft.states(session_id, start)
    positions = range(first, first + len(found))
    assert found[:, :NUMBERS].tolist() == states_of(positions, text).tolist()
    return positions


@given(
    st.lists(st.tuples(st.integers(1, PLACES), st.integers(0, 3)), max_size=8), st.integers(0, 30)
)
def test_draft_reads_the_newest_states_when_the_target_wrote_more_than_fit(
    pool: Pool, writes: list[tuple[int, int]], start: int
) -> None:
    """A write may follow the one before at once, or behind a gap."""
    target, draft, session_id = adopted(pool)
    first = end = 0
    for count, gap in writes:
        if gap:
            first = end + gap
        target.publish_states(end + gap, states_of(range(end + gap, end + gap + count)))
        end += gap + count
    expected = range(max(start, first, end - PLACES), end)
    assert list(positions_read(draft, session_id, start)) == list(expected)


def test_draft_misses_states_when_they_are_of_another_session(pool: Pool) -> None:
    target, draft, old = adopted(pool)
    target.publish_states(0, states_of(range(4)))
    assert list(positions_read(draft, old, 0)) == [0, 1, 2, 3]
    assert len(draft.states(old + 1, 0)[1]) == 0
    target.adopt(pool.new_session_id())
    assert len(draft.states(old, 0)[1]) == 0


@pytest.mark.parametrize("begins_anew", [False, True])
def test_states_are_whole_when_the_draft_reads_between_any_two_stores(
    pool: Pool, begins_anew: bool
) -> None:
    target, draft, session_id = adopted(pool)
    target.publish_states(0, states_of(range(6)))
    seen: list[range] = []

    def look() -> None:
        seen.append(positions_read(draft, session_id, 0))

    target._record = WatchedRecord(Record(pool.slots, 0), look)  # type: ignore[assignment]
    if begins_anew:  # a target that takes the session over reads its prompt again
        target.adopt(session_id)
        target.publish_states(1, states_of(range(1, 5)))
    target.publish_states(6, states_of(range(6, 11)))
    assert {len(positions) for positions in seen} >= {0} if begins_anew else {6, 8}


@pytest.mark.parametrize("store", ["publish", "adopt and publish"])
def test_draft_misses_overwritten_states_when_the_target_writes_while_it_copies(
    pool: Pool, store: str
) -> None:
    """The draft has read how far the states reach, and the target writes before it copies them."""
    target, draft, session_id = adopted(pool)
    target.publish_states(0, states_of(range(PLACES)))

    class Interrupted:
        """The draft's record; the target writes when the draft takes the ring to copy from."""

        def __init__(self) -> None:
            self.record, self.pending = Record(pool.slots, 0), True

        def __contains__(self, name: str) -> bool:
            return name in self.record

        def __getitem__(self, name: str) -> object:
            value = self.record[name]
            if name == "states_end" and self.pending:
                self.pending = False
                if store == "adopt and publish":
                    target.adopt(session_id)
                    target.publish_states(0, states_of(range(3), text=1))
                else:
                    target.publish_states(PLACES, states_of(range(PLACES, PLACES + 3)))
            return value

    draft._record = Interrupted()  # type: ignore[assignment]
    expected = range(3, PLACES) if store == "publish" else range(0)
    assert list(positions_read(draft, session_id, 0)) == list(expected)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=4, max_size=4), st.integers(-5, 2**62))
def test_reading_never_fails_when_the_words_of_the_ring_are_garbage(
    pool: Pool, words: list[int], start: int
) -> None:
    record = Record(pool.slots, 0)
    for name, word in zip(("turn", "first", "claimed", "end"), words, strict=True):
        record[f"states_{name}"] = word
    record["states_session_id"] = 5
    _, found = pool.draft_slot(0).states(5, start)
    assert len(found) <= PLACES
    record["states_turn"] = 0

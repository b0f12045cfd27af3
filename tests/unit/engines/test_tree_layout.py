"""Passes that several growing trees share come in few shapes, and every row sees what it should."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from card.engines import FOLLOWS_PREFIX, SequenceTokens
from card.engines.layout import EXTENT_MULTIPLE, TreeLayout
from card.engines.layout.plan import doubled_up

SESSIONS = 12
PLACES = 5 * EXTENT_MULTIPLE


class Places:
    """A KV cache that is only as large as one."""

    places = PLACES

    def copy(self, source: int, start: int, stop: int, lanes: range, to: int) -> None:
        raise NotImplementedError

    def gather(self, lane: int, start: int, sources: NDArray[np.int64]) -> None:
        raise NotImplementedError


@given(st.integers(1, 900), st.sampled_from([1, 128]), st.sampled_from([16, 900, 1280]))
def test_sizes_are_doubled_until_they_are_enough(value: int, unit: int, most: int) -> None:
    found = doubled_up(value, unit, most)
    assert found >= min(value, most)
    assert found == most or (found % unit == 0 and (found // unit).bit_count() == 1)
    assert found == most or found < 2 * max(value, unit)


@given(
    lengths=st.dictionaries(
        st.integers(0, SESSIONS - 1), st.integers(0, 400), min_size=2, max_size=SESSIONS
    )
)
def test_a_shared_pass_covers_its_lanes_and_places_and_hides_what_others_wrote(
    lengths: dict[int, int],
) -> None:
    layout = TreeLayout(Places(), SESSIONS, pending=64, few_shapes=True)
    for _ in range(SESSIONS):
        layout.open()
    for session, length in lengths.items():
        layout._sessions.length[session] = length
    batch = [SequenceTokens(session, [1, 2], [FOLLOWS_PREFIX, 0]) for session in lengths]
    (group,) = layout.plan(batch).groups
    assert set(lengths) <= set(group.lanes)
    assert group.lanes.stop <= SESSIONS
    assert len(group.lanes) in (2, 4, 8, SESSIONS)
    assert max(lengths.values()) + 2 <= group.extent <= PLACES
    assert group.extent in (128, 256, 512)
    for session, length in lengths.items():
        mask = group.mask[session - group.lanes.start]
        seen = np.flatnonzero(mask[1] == 0) + group.mask_from
        assert seen.tolist() == list(range(group.mask_from, length + 2))


@given(
    grown=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    seed=st.integers(0, 99),
    shared=st.booleans(),
)
def test_every_entry_sees_its_ancestors_however_many_there_are(
    grown: list[int], seed: int, shared: bool
) -> None:
    """Of trees that need more room again and again, in passes of their own and beside another."""
    draw = np.random.default_rng(seed)
    layout = TreeLayout(Places(), sessions=2, pending=sum(grown))
    session, other = layout.open(), layout.open()
    seen: list[set[int]] = []
    for count in grown:
        first = len(seen)
        parents = []
        for entry in range(first, first + count):
            parents.append(int(draw.integers(FOLLOWS_PREFIX, entry)))
            above = set() if parents[-1] == FOLLOWS_PREFIX else seen[parents[-1]]
            seen.append({entry, *above})
        batch = [SequenceTokens(session, [1] * len(parents), parents)]
        if shared and not layout._depths[other]:
            batch.append(SequenceTokens(other, [1]))
        (group,) = layout.plan(batch).groups
        for row, ancestors in enumerate(seen[first:]):
            assert set(np.flatnonzero(group.mask[0, row] == 0.0)) == ancestors


def test_masks_take_what_the_entries_of_a_session_need() -> None:
    layout = TreeLayout(Places(), sessions=4, pending=8192)
    taken = sum(masks.nbytes for masks in layout._sees)
    assert taken < 1 << 20
    for _ in range(4):
        layout.plan([SequenceTokens(layout.open(), [1] * 100)])
    assert sum(masks.nbytes for masks in layout._sees) < 1 << 20
    layout.plan([SequenceTokens(0, [1] * 4000, [FOLLOWS_PREFIX] * 4000)])
    layout.close(0)
    layout.open()
    assert sum(masks.nbytes for masks in layout._sees) < 1 << 20

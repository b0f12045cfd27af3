"""Passes that several growing trees share come in few shapes, and every row sees what it should."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from card.engines import FOLLOWS_PREFIX, Rows
from card.engines.layout import EXTENT_MULTIPLE, TreeLayout
from card.engines.layout.plan import doubled_up

SESSIONS = 12
PLACES = 5 * EXTENT_MULTIPLE


class Places:
    """A KV cache that is only as large as one."""

    places = PLACES

    def replicate(self, source: int, lanes: range, start: int, stop: int) -> None:
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
    batch = [Rows(session, [1, 2], [FOLLOWS_PREFIX, 0]) for session in lengths]
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

"""Every row sees what it should, and nothing else, whatever shares the pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from card.engines import FOLLOWS_PREFIX, EngineError, SequenceTokens
from card.engines.layout import (
    EXTENT_MULTIPLE,
    BranchLayout,
    PathLayout,
    Scattered,
    TreeLayout,
)
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
    layout = TreeLayout(Places(), SESSIONS, pending=64)
    for _ in range(SESSIONS):
        layout.open()
    for session, length in lengths.items():
        layout._sessions.length[session] = length
    batch = [SequenceTokens(session, [1, 2], [FOLLOWS_PREFIX, 0]) for session in lengths]
    (group,) = layout.plan(batch).groups
    assert group.lanes == range(min(lengths), max(lengths) + 1)
    assert max(lengths.values()) + 2 <= group.extent < max(lengths.values()) + 2 + EXTENT_MULTIPLE
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


PENDING = 24
TOKENS = itertools.count()


@dataclass
class Lanes:
    """The token that stands at each place of two lanes."""

    tokens: NDArray[np.int64] = field(default_factory=lambda: np.full((2, 200), -1))

    places = PENDING

    def copy(self, source: int, start: int, stop: int, lanes: range, to: int) -> None:
        raise AssertionError("paths lie in one lane")

    def gather(self, lane: int, start: int, sources: NDArray[np.int64]) -> None:
        self.tokens[lane, start : start + len(sources)] = self.tokens[lane, start + sources]


class Model:
    """The same session as plain lists: a token and a parent for every pending entry."""

    def __init__(self) -> None:
        self.prefix: list[int] = []
        self.pending: list[tuple[int, int]] = []

    def text(self, entry: int) -> list[int]:
        """Everything that an entry sees, itself included."""
        path: list[int] = []
        while entry != FOLLOWS_PREFIX:
            token, entry = self.pending[entry]
            path.append(token)
        return [*self.prefix, *reversed(path)]

    def commit_kv(self, confirmed: list[int], surviving: list[int]) -> None:
        self.prefix += [self.pending[entry][0] for entry in confirmed]
        renumbered = {old: new for new, old in enumerate(surviving)}
        self.pending = [
            (self.pending[old][0], renumbered.get(self.pending[old][1], FOLLOWS_PREFIX))
            for old in surviving
        ]


def drawn_rows(data: st.DataObject, models: dict[int, Model]) -> list[SequenceTokens]:
    """Of each session some, which also follow one another; tokens are all different."""
    batch = []
    for session, model in models.items():
        count = data.draw(st.integers(1, min(5, PENDING - len(model.pending)) or 1))
        first = len(model.pending)
        parents = [data.draw(st.integers(FOLLOWS_PREFIX, first + row - 1)) for row in range(count)]
        tokens = [next(TOKENS) for _ in range(count)]
        batch.append(SequenceTokens(session, tokens, parents))
        model.pending += zip(tokens, parents, strict=True)
    return batch


@given(st.data())
def test_a_row_sees_its_ancestors_in_order_through_growth_and_pruning(data: st.DataObject) -> None:
    lanes = Lanes()
    layout = PathLayout(lanes, 2, PENDING)
    sessions = [layout.open(), layout.open()]
    models = {session: Model() for session in sessions}
    for _ in range(data.draw(st.integers(1, 5))):
        batch = drawn_rows(data, models)
        this = layout.plan(batch)
        assert this.paths is not None
        assert isinstance(this.destination, Scattered)
        lanes.tokens[this.destination.lane, this.destination.place] = this.tokens
        at = 0
        for rows, paths in zip(batch, this.paths, strict=True):
            model = models[rows.session]
            first = len(model.pending) - len(rows.tokens)
            for row, entry in enumerate(range(first, len(model.pending))):
                behind = paths.places[row, : paths.depths[row] + 1]
                seen = lanes.tokens[paths.lane, [*range(paths.start), *behind]]
                assert seen.tolist() == model.text(entry)
                assert this.positions[at + row] == len(seen) - 1
                parent = model.pending[entry][1] - first
                assert paths.follows[row] == max(parent, -1)
            at += len(rows.tokens)
        for session in sessions:
            keep_a_path(data, layout, models[session], session)


class PageTable:
    """The token that stands at each place of a page, and who has which page."""

    page = 4

    def __init__(self, pages: int) -> None:
        self.table = np.full((2, 50), -1, np.int32)
        self.tokens = np.full((pages, self.page), -1)
        self.free = set(range(pages))

    def take(self) -> int:
        page = self.free.pop()
        self.tokens[page] = -1
        return page

    def give_back(self, pages: Iterable[int]) -> None:
        assert self.free.isdisjoint(pages)
        self.free |= set(pages)

    def duplicate(self, sources: Sequence[int], copies: Sequence[int]) -> None:
        self.tokens[copies] = self.tokens[sources]


@given(st.data())
def test_a_row_finds_its_ancestors_in_its_pages_through_growth_and_pruning(
    data: st.DataObject,
) -> None:
    pages = PageTable(2 * (PENDING + 30))
    layout = BranchLayout(pages, 2, PENDING)
    models = {layout.open(): Model() for _ in range(2)}
    every = len(pages.free)
    for _ in range(data.draw(st.integers(1, 5))):
        batch = drawn_rows(data, models)
        most = sum(layout.most_rows(rows) for rows in batch)
        this = layout.plan(batch)
        assert len(this.tokens) <= most
        assert this.pages is not None
        written: dict[tuple[int, int], int] = {}
        for token, position, first in zip(
            this.tokens, this.positions, this.pages.first, strict=True
        ):
            page, place = this.pages.table[first + position // pages.page], position % pages.page
            assert page not in pages.free
            assert written.setdefault((page, place), token) == token
            pages.tokens[page, place] = token
        at = 0
        for rows in batch:
            model = models[rows.session]
            for entry in range(len(model.pending) - len(rows.tokens), len(model.pending)):
                seen = this.positions[at] + 1
                path = this.pages.table[this.pages.first[at] :][: -(-seen // pages.page)]
                assert pages.tokens[path].reshape(-1)[:seen].tolist() == model.text(entry)
                at += 1
        wanted = this.logit_rows
        assert at == len(this.tokens) or (wanted is not None and list(wanted) == list(range(at)))
        for session, model in models.items():
            keep_a_path(data, layout, model, session)
            if not model.pending:
                assert len(layout._trees[session].filled) <= 1
    for session in models:
        layout.close(session)
    held = sum(
        -(-len(model.prefix) // pages.page) - (len(model.prefix) % pages.page > 0)
        for model in models.values()
    )
    assert len(pages.free) == every - held


def keep_a_path(
    data: st.DataObject, layout: PathLayout | BranchLayout, model: Model, session: int
) -> None:
    """Confirm the way to some entry; some of what stands below it survives."""
    path = []
    entry = data.draw(st.integers(FOLLOWS_PREFIX, len(model.pending) - 1))
    while entry != FOLLOWS_PREFIX:
        path.append(entry)
        entry = model.pending[entry][1]
    path.reverse()
    surviving: list[int] = []
    for candidate, (_, parent) in enumerate(model.pending):
        below = parent in surviving or parent == (path[-1] if path else FOLLOWS_PREFIX)
        if candidate not in path and below and data.draw(st.booleans()):
            surviving.append(candidate)
    layout.commit_kv(session, path, surviving)
    model.commit_kv(path, surviving)
    assert layout.length(session) == len(model.prefix)


def test_more_rows_than_a_session_holds_are_refused() -> None:
    layout = PathLayout(Lanes(), 2, PENDING)
    with pytest.raises(EngineError, match=f"{PENDING + 1} pending entries"):
        layout.plan([SequenceTokens(layout.open(), [0] * (PENDING + 1))])

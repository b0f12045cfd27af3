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
from card.engines.layout import PageLayout, PathLayout

PENDING = 24
TOKENS = itertools.count()


@dataclass
class Lanes:
    """The token that stands at each place of two lanes."""

    tokens: NDArray[np.int64] = field(default_factory=lambda: np.full((2, 200), -1))

    def copy(self, source: int, start: int, stop: int, lane: int, to: int) -> None:
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
        at = 0
        for rows, paths in zip(batch, this.sessions, strict=True):
            stored = this.tokens[at : at + len(rows.tokens)]
            lanes.tokens[paths.lane, paths.stored_places] = stored
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
    layout = PageLayout(pages, 2, PENDING)
    models = {layout.open(): Model() for _ in range(2)}
    every = len(pages.free)
    for _ in range(data.draw(st.integers(1, 5))):
        batch = drawn_rows(data, models)
        most = sum(layout.most_rows(rows) for rows in batch)
        this = layout.plan(batch)
        assert len(this.tokens) <= most
        written: dict[tuple[int, int], int] = {}
        for token, position, first in zip(this.tokens, this.positions, this.first, strict=True):
            page, place = this.table[first + position // pages.page], position % pages.page
            assert page not in pages.free
            assert written.setdefault((page, place), token) == token
            pages.tokens[page, place] = token
        at = 0
        for rows in batch:
            model = models[rows.session]
            for entry in range(len(model.pending) - len(rows.tokens), len(model.pending)):
                seen = this.positions[at] + 1
                path = this.table[this.first[at] :][: -(-seen // pages.page)]
                assert pages.tokens[path].reshape(-1)[:seen].tolist() == model.text(entry)
                at += 1
        assert list(this.logit_rows) == list(range(at))
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
    data: st.DataObject, layout: PathLayout | PageLayout, model: Model, session: int
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

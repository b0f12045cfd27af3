"""Paths of rows over one lane: what a row looks at is its ancestry, whatever was dropped before."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from card.engines.interface import FOLLOWS_PREFIX, EngineError, SequenceTokens
from card.engines.layout import PathLayout, Scattered

PENDING = 24


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


@given(st.data())
def test_a_row_sees_its_ancestors_in_order_through_growth_and_pruning(data: st.DataObject) -> None:
    lanes = Lanes()
    layout = PathLayout(lanes, 2, PENDING)
    sessions = [layout.open(), layout.open()]
    models = {session: Model() for session in sessions}
    token = 0
    for _ in range(data.draw(st.integers(1, 5))):
        batch = []
        for session in sessions:
            model = models[session]
            count = data.draw(st.integers(1, min(5, PENDING - len(model.pending)) or 1))
            first = len(model.pending)
            parents = [
                data.draw(st.integers(FOLLOWS_PREFIX, first + row - 1)) for row in range(count)
            ]
            batch.append(SequenceTokens(session, list(range(token, token + count)), parents))
            model.pending += zip(batch[-1].tokens, parents, strict=True)
            token += count
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


def keep_a_path(data: st.DataObject, layout: PathLayout, model: Model, session: int) -> None:
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

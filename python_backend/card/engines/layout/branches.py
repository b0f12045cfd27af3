"""One lane per session, and pages of its own for every branch of a growing tree.

Every row looks at the places of its path up to its own, so nothing is masked; a long chain does so
as one. The first row behind another stands in the same page; a further one has a copy of it, for
both want the same place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from card.engines.interface import FOLLOWS_PREFIX, EngineError, SequenceTokens
from card.engines.layout.plan import SHORT, Pass, RowPages, Scattered, last_rows
from card.engines.layout.sessions import OneLaneEach


class Pages(Protocol):
    """Pages of keys and values, and a table of those that lanes have.

    page   places of each
    table  [lanes, pages of a lane] int32
    """

    page: int
    table: NDArray[np.int32]

    def take(self) -> int:
        """One that nobody has."""

    def give_back(self, pages: Iterable[int]) -> None:
        """Let others have pages that were taken."""

    def duplicate(self, sources: Sequence[int], copies: Sequence[int]) -> None:
        """Copy what each of `sources` holds."""


Path = tuple[int, ...]
"""Pages of a path, from the one on in which the prefix ends."""


@dataclass(slots=True)
class _Tree:
    """The pending entries of a session, and where its prefix ends.

    end     the page in which it does, unless it fills its pages
    paths   of every entry
    depths  of every entry, 0 for those that follow the prefix
    filled  places of every page here that have an entry or the prefix
    """

    end: Path = ()
    paths: list[Path] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    filled: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Rows:
    """Rows of a pass, and the table of pages of each.

    begins  rows that are not attended with the one before
    """

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)

    def add(self, token: int, position: int, lane: int, path: Path, *, joins: bool = False) -> None:
        if not joins:
            self.begins.append(len(self.tokens))
        self.tokens.append(token)
        self.positions.append(position)
        self.lanes.append(lane)
        self.paths.append(path)


class BranchLayout(OneLaneEach):
    """Implements `plan.Layout` with passes that attend nothing together.

    pending  most unconfirmed entries of a session; each takes one page at most
    """

    def __init__(self, pages: Pages, sessions: int, pending: int) -> None:
        super().__init__(sessions)
        self._pages = pages
        self._pending = pending
        self._trees = [_Tree() for _ in range(sessions)]

    def open(self, length: int = 0) -> int:
        """The prefix fills its pages."""
        session = super().open(length)
        self._trees[session] = _Tree()
        return session

    def close(self, session: int) -> None:
        self._pages.give_back(self._trees[session].filled)
        super().close(session)

    def plan(self, batch: Sequence[SequenceTokens]) -> Pass:
        planned, again = _Rows(), _Rows()
        copies: dict[int, int] = {}
        for rows in batch:
            self._append(rows, planned, again, copies)
        begins = planned.begins + [len(planned.tokens) + row for row in again.begins]
        if copies:
            self._pages.duplicate(list(copies.values()), list(copies))
        logit_rows = last_rows([len(rows.tokens) for rows in batch], batch)
        if logit_rows is None and again.tokens:
            logit_rows = np.arange(len(planned.tokens))
        lanes = np.array(planned.lanes + again.lanes, np.int64)
        positions = np.array(planned.positions + again.positions, np.int64)
        return Pass(
            tokens=np.array(planned.tokens + again.tokens, np.int64),
            positions=positions,
            destination=Scattered(lanes, positions),
            groups=[],
            scatter=None,
            logit_rows=logit_rows,
            pages=RowPages(*self._tables(lanes, planned.paths + again.paths), np.array(begins)),
        )

    def _append(
        self, rows: SequenceTokens, planned: _Rows, again: _Rows, copies: dict[int, int]
    ) -> None:
        """Give rows entries.

        again   rows of this pass once more: pages were copied that they had yet to fill
        copies  pages to be copied before the pass: of each, which
        """
        tree, size = self._trees[rows.session], self._pages.page
        first, start = len(tree.paths), self._sessions.length[rows.session]
        if first + len(rows.tokens) > self._pending:
            stop = first + len(rows.tokens)
            raise EngineError(f"{stop} pending entries; a session holds {self._pending}")
        if rows.parents is None and first:
            raise ValueError("a chain continues the prefix only when nothing is pending")
        is_long = rows.parents is None and len(rows.tokens) > SHORT
        parents = range(-1, len(rows.tokens) - 1) if rows.parents is None else rows.parents
        for token, parent in zip(rows.tokens, parents, strict=True):
            is_first = parent == FOLLOWS_PREFIX
            depth = 0 if is_first else tree.depths[parent] + 1
            above = tree.end if is_first else tree.paths[parent]
            path = self._with_place(tree, above, (start + depth) % size)
            if above and path[: len(above)] != above:
                copies[path[-1]] = copies.get(above[-1], above[-1])
                while (
                    parent >= first
                    and (start + tree.depths[parent]) // size == (start + depth) // size
                ):
                    missing = rows.tokens[parent - first]
                    again.add(missing, start + tree.depths[parent], rows.session, path)
                    parent = parents[parent - first]
            joins = is_long and not is_first
            planned.add(token, start + depth, rows.session, path, joins=joins)
            tree.paths.append(path)
            tree.depths.append(depth)

    def _with_place(self, tree: _Tree, above: Path, at: int) -> Path:
        """The path whose last page has an entry at this place, behind all that `above` has."""
        if at and tree.filled[above[-1]] == at:
            tree.filled[above[-1]] += 1
            return above
        page = self._pages.take()
        tree.filled[page] = at + 1
        return (*above[:-1], page) if at else (*above, page)

    def _tables(
        self, lanes: NDArray[np.int64], paths: list[Path]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Table and first of `RowPages`. Neighbouring rows of one path look at the same."""
        size = self._pages.page
        width = self._pages.table.shape[1]
        first = np.empty(len(paths), np.int32)
        tables: list[NDArray[np.int32]] = []
        below: tuple[int, Path] = -1, ()
        for row in range(len(paths) - 1, -1, -1):
            lane, path = int(lanes[row]), paths[row]
            if lane != below[0] or below[1][: len(path)] != path:
                below = lane, path
                begins = self._sessions.length[lane] // size
                table = self._pages.table[lane].copy()
                table[begins : begins + len(path)] = path
                tables.append(table)
            first[row] = (len(tables) - 1) * width
        return np.concatenate(tables), first

    def commit_kv(self, session: int, confirmed: Sequence[int], surviving: Sequence[int]) -> None:
        """The pages that the prefix fills become its lane's."""
        tree, size = self._trees[session], self._pages.page
        start = self._sessions.length[session]
        stop = start + len(confirmed)
        begins, fills = start // size, stop // size - start // size
        path = tree.paths[confirmed[-1]] if confirmed else tree.end
        self._pages.table[session, begins : begins + fills] = path[:fills]
        after = _Tree(end=path[fills:])
        after.filled = dict.fromkeys(after.end, stop % size)
        for entry in surviving:
            depth = tree.depths[entry] - len(confirmed)
            after.paths.append(tree.paths[entry][fills:])
            after.depths.append(depth)
            page = after.paths[-1][-1]
            after.filled[page] = max(after.filled.get(page, 0), (stop + depth) % size + 1)
        self._pages.give_back(tree.filled.keys() - after.filled.keys() - {*path[:fills]})
        self._trees[session] = after
        self._sessions.length[session] = stop

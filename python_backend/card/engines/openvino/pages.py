"""One lane per session, and separate pages for every path of a growing tree or a query.

Every row attends to the places of its path up to its own, so no mask is needed. The first child of
a row stands in the same page. Each further child gets a copy of the page, because both need the
same place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from card.engines.interface import FOLLOWS_PREFIX, SequenceTokens
from card.engines.openvino.memory import PAGE, PageMemory, pages_of, table_shape
from card.engines.options import EngineOptions
from card.engines.sessions import (
    SHORT,
    Sessions,
    check_pending,
    wanted_logit_rows,
)

_NONE = -1


class PagedCache:
    """The table of the lanes' pages. A copy of whole pages shares them, so keeping a text takes no
    more memory.

    first_page  first page of the sessions
    """

    page = PAGE

    def __init__(self, memory: PageMemory, options: EngineOptions, first_page: int = 0) -> None:
        self._memory = memory
        self.table: NDArray[np.int32] = np.full(table_shape(options), _NONE, np.int32)
        """[lanes, pages of a lane], numbers of pages; lanes for kept texts come last."""
        self._holders = [0] * memory.pages
        self._free = list(range(first_page, first_page + pages_of(options)))[::-1]

    @property
    def pages_of_lane(self) -> int:
        return int(self.table.shape[1])

    def copy(self, source: int, start: int, stop: int, lane: int, to: int) -> None:
        """Let `lane` share places [start, stop) of lane `source` as its places from `to` on; all
        three are multiples of a page."""
        for offset in range((stop - start) // PAGE):
            at = source, start // PAGE + offset
            self._put((lane, to // PAGE + offset), int(self.table[at]))

    def take(self) -> int:
        """Take a free page for a path of a tree; it may move to a lane later."""
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def give_back(self, pages: Iterable[int]) -> None:
        """Free the pages of paths."""
        for page in pages:
            self._holders[page] = 0
            self._free.append(page)

    def duplicate(self, sources: Sequence[int], copies: Sequence[int]) -> None:
        """Copy what pages hold to others."""
        for part in self._memory.buffers.values():
            part[:, copies] = part[:, sources]

    def release(self, lane: int) -> None:
        """Free the pages of a lane when its text has ended."""
        for page in np.flatnonzero(self.table[lane] != _NONE).tolist():
            self._put((lane, page), _NONE)

    def _put(self, at: tuple[int, int], page: int) -> None:
        before = int(self.table[at])
        if page != _NONE:
            self._holders[page] += 1
        if before != _NONE:
            self._holders[before] -= 1
            if self._holders[before] == 0:
                self._free.append(before)
        self.table[at] = page


@dataclass(slots=True)
class PagedPass:
    """A pass with rows that find their places in a table of pages.

    tokens, positions  [rows] int64; positions are absolute
    logit_rows         [n] int64, rows that need logits
    table              [any] int32, numbers of pages, path after path
    first              [rows] int32, index in `table` of the first page of each row's path
    begins             [sequences] int64, the first row of each chain that is attended as one
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    logit_rows: NDArray[np.int64]
    table: NDArray[np.int32]
    first: NDArray[np.int32]
    begins: NDArray[np.int64]


Path = tuple[int, ...]
"""Pages of a path, from the page with the prefix's end on."""


@dataclass(slots=True)
class _Tree:
    """The pending entries of a session, and the end of its prefix.

    end     the page with the prefix's end, unless the prefix fills its pages
    paths   path of every entry
    depths  depth of every entry, 0 for those that follow the prefix
    filled  number of used places of every page
    """

    end: Path = ()
    paths: list[Path] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    filled: dict[int, int] = field(default_factory=dict)

    def behind(self, parent: int) -> tuple[Path, int]:
        """The path and the depth of an entry that follows `parent`, an entry or the prefix."""
        if parent == FOLLOWS_PREFIX:
            return self.end, 0
        return self.paths[parent], self.depths[parent] + 1


@dataclass(slots=True)
class _Rows:
    """Rows of a pass, and the table of pages of each.

    begins  rows that are not attended together with the row before
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


@dataclass(slots=True)
class _PlannedRows:
    """The rows of a pass.

    first   rows of all sessions, in order
    again   some of these rows once more, for copies of pages that they fill in this pass
    copies  pages to copy before the pass: copy and source
    """

    first: _Rows = field(default_factory=_Rows)
    again: _Rows = field(default_factory=_Rows)
    copies: dict[int, int] = field(default_factory=dict)

    def copy(self, source: int, page: int) -> None:
        """Plan to copy `source` to `page` before the pass; a copy of a copy takes its source."""
        self.copies[page] = self.copies.get(source, source)


class PageLayout(Sessions):
    """Sessions with pages: every row finds its own places.

    pending       most unconfirmed entries of a session; each takes at most one page
    joins_chunks  long chains are attended as one, which is faster but makes their bits depend on
                  the other rows of the pass
    """

    def __init__(
        self, pages: PagedCache, sessions: int, pending: int, *, joins_chunks: bool = False
    ) -> None:
        super().__init__(sessions)
        self._joins_chunks = joins_chunks
        self._pages = pages
        self._pending = pending
        self._trees = [_Tree() for _ in range(sessions)]

    def close(self, session: int) -> None:
        """Close a session; its tree is reset for the next one."""
        self._pages.give_back(self._trees[session].filled)
        self._trees[session] = _Tree()
        super().close(session)

    def most_rows(self, rows: SequenceTokens) -> int:
        """Most rows of a pass for `rows`, with the repeated rows for copies of pages."""
        count, first = len(rows.tokens), len(self._trees[rows.session].paths)
        followed = set[int]()
        above: dict[int, int] = {}  # number of rows of this pass on the path to each row
        for entry, parent in enumerate(rows.parents or (), first):
            on_path = above.get(parent, 0)
            above[entry] = on_path + 1
            if parent in followed:
                count += on_path
            followed.add(parent)
        return count

    def plan(self, batch: Sequence[SequenceTokens]) -> PagedPass:
        """Plan a pass: give each row an entry in a page of its path."""
        planned = _PlannedRows()
        for rows in batch:
            self._append(rows, planned)
        first, again = planned.first, planned.again
        if planned.copies:
            self._pages.duplicate(list(planned.copies.values()), list(planned.copies))
        lanes = np.array(first.lanes + again.lanes, np.int64)
        table, first_pages = self._tables(lanes, first.paths + again.paths)
        return PagedPass(
            tokens=np.array(first.tokens + again.tokens, np.int64),
            positions=np.array(first.positions + again.positions, np.int64),
            logit_rows=wanted_logit_rows(batch),
            table=table,
            first=first_pages,
            begins=np.array(first.begins + [len(first.tokens) + row for row in again.begins]),
        )

    def _append(self, rows: SequenceTokens, planned: _PlannedRows) -> None:
        """Give each row an entry in its parent's page or in a copy of that page."""
        tree, first = self._trees[rows.session], len(self._trees[rows.session].paths)
        check_pending(rows.parents, first, len(rows.tokens), self._pending)
        start, size = self.lengths[rows.session], self._pages.page
        joins = self._joins_chunks and rows.parents is None and len(rows.tokens) > SHORT
        parents = range(-1, len(rows.tokens) - 1) if rows.parents is None else rows.parents
        for token, parent in zip(rows.tokens, parents, strict=True):
            above, depth = tree.behind(parent)
            position = start + depth
            path = self._with_place(tree, above, position % size)
            if above and path[: len(above)] != above:
                planned.copy(above[-1], path[-1])
                # The copy is made before the pass, so it lacks the pass's rows in that page.
                while parent >= first and start + tree.depths[parent] >= position // size * size:
                    missing = rows.tokens[parent - first]
                    planned.again.add(missing, start + tree.depths[parent], rows.session, path)
                    parent = parents[parent - first]
            planned.first.add(token, position, rows.session, path, joins=joins and depth > 0)
            tree.paths.append(path)
            tree.depths.append(depth)

    def _with_place(self, tree: _Tree, above: Path, at: int) -> Path:
        """A path with room for an entry at place `at`, behind all entries of `above`."""
        if at and tree.filled[above[-1]] == at:
            tree.filled[above[-1]] += 1
            return above
        page = self._pages.take()
        tree.filled[page] = at + 1
        return (*above[:-1], page) if at else (*above, page)

    def _tables(
        self, lanes: NDArray[np.int64], paths: list[Path]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """`table` and `first` of `PagedPass`. Neighbouring rows of one path share their part."""
        size = self._pages.page
        width = self._pages.table.shape[1]
        first = np.empty(len(paths), np.int32)
        tables: list[NDArray[np.int32]] = []
        below: tuple[int, Path] = -1, ()
        for row in range(len(paths) - 1, -1, -1):
            lane, path = int(lanes[row]), paths[row]
            if lane != below[0] or below[1][: len(path)] != path:
                below = lane, path
                begins = self.lengths[lane] // size
                table = self._pages.table[lane].copy()
                table[begins : begins + len(path)] = path
                tables.append(table)
            first[row] = (len(tables) - 1) * width
        return np.concatenate(tables), first

    def commit_kv(self, session: int, confirmed: Sequence[int], surviving: Sequence[int]) -> None:
        """Confirm entries; pages that the prefix fills move to the session's lane."""
        tree, size = self._trees[session], self._pages.page
        start = self.lengths[session]
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
        self.lengths[session] = stop

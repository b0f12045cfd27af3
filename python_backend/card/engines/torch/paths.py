"""One lane per session; pending rows lie behind the prefix in the order of arrival, and every row
has the places of its path.

Attention follows paths. So chains, queried trees and growing trees are one case, and no row depends
on the place of another row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from card.engines.interface import FOLLOWS_PREFIX, SequenceTokens
from card.engines.sessions import (
    KeyValueBuffers,
    Sessions,
    check_pending,
    wanted_logit_rows,
)


class KeyValueStore(KeyValueBuffers, Protocol):
    """Lanes with entries that can be moved."""

    def gather(self, lane: int, start: int, sources: NDArray[np.int64]) -> None:
        """Move the entries at `start + sources` of a lane to `start`, `start + 1`, ..."""


@dataclass(slots=True)
class SessionPaths:
    """The places to which the rows of one session attend.

    lane     lane of the KV cache
    start    length of the prefix, which every row attends to
    stored   place of the first row's keys and values; the other rows follow
    depths   [rows] int64: a row stands at position start + depth
    places   [rows, deepest + 1] int64: places of each row's path from `start` on, its own last;
             the rest is undefined
    follows  [rows] int64: the row of this pass that each row follows; -1 if there is none
    """

    lane: int
    start: int
    stored: int
    depths: NDArray[np.int64]
    places: NDArray[np.int64]
    follows: NDArray[np.int64]

    @property
    def stored_places(self) -> NDArray[np.int64]:
        """[rows], the place of each row's keys and values."""
        return np.arange(self.stored, self.stored + len(self.depths))


@dataclass(slots=True)
class PathPass:
    """A pass with rows that attend to the places of their paths.

    tokens, positions  [rows] int64; positions are absolute
    logit_rows         [n] int64, rows that need logits
    sessions           in the order of the rows
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    logit_rows: NDArray[np.int64]
    sessions: list[SessionPaths]


@dataclass(frozen=True, slots=True)
class PathTile:
    """Rows of one session along one path, each behind the row before.

    base  index of the session's first row in the pass
    rows  indices of rows in the session, from 0
    """

    session: SessionPaths
    base: int
    rows: list[int]

    @property
    def path(self) -> NDArray[np.int64]:
        """The places behind the prefix that the last row attends to."""
        last = self.rows[-1]
        return self.session.places[last, : int(self.session.depths[last]) + 1]


def path_tiles(sessions: Sequence[SessionPaths], most: int) -> list[PathTile]:
    """All rows of a pass in tiles of at most `most` rows, each of which follows the row before."""
    found: list[PathTile] = []
    base = 0
    for session in sessions:
        of_session: list[PathTile] = []
        ending: dict[int, PathTile] = {}  # tiles with room, by their last row
        for row, parent in enumerate(session.follows.tolist()):
            tile = ending.pop(parent, None)
            if tile is None:
                tile = PathTile(session, base, [])
                of_session.append(tile)
            tile.rows.append(row)
            if len(tile.rows) < most:
                ending[row] = tile
        found += of_session
        base += len(session.follows)
    return found


class PathLayout(Sessions):
    """Sessions with paths.

    pending  most unconfirmed entries of a session
    """

    def __init__(self, kv: KeyValueStore, sessions: int, pending: int) -> None:
        super().__init__(sessions)
        self._kv = kv
        self._pending = [_Pending(pending) for _ in range(sessions)]

    def open(self, length: int = 0) -> int:
        session = super().open(length)
        self._pending[session].clear()
        return session

    def plan(self, batch: Sequence[SequenceTokens]) -> PathPass:
        """Plan a pass: give the rows entries behind the pending ones."""
        sessions = []
        for rows in batch:
            pending, first = self._pending[rows.session], self._pending[rows.session].count
            pending.append(rows.parents, len(rows.tokens))
            sessions.append(pending.paths_from(first, rows.session, self.lengths[rows.session]))
        return PathPass(
            tokens=np.array([token for rows in batch for token in rows.tokens], np.int64),
            positions=np.concatenate([one.start + one.depths for one in sessions]),
            logit_rows=wanted_logit_rows(batch),
            sessions=sessions,
        )

    def commit_kv(self, session: int, confirmed: Sequence[int], surviving: Sequence[int]) -> None:
        """Move confirmed entries to the prefix and survivors behind it; drop all other entries."""
        moved = [*confirmed, *surviving]
        if moved != list(range(len(moved))):
            self._kv.gather(session, self.lengths[session], np.array(moved, np.int64))
        self._pending[session].commit_kv(len(confirmed), surviving)
        self.lengths[session] += len(confirmed)


class _Pending:
    """Rows of one session that are not confirmed yet.

    _entries  [most, most] int64: entries of each row's path, its own last; the system allocates
              memory only for written pages
    _depths   [most] int64: 0 for entries that follow the prefix
    _parents  [most] int64: parent entry of each, -1 for the prefix
    """

    def __init__(self, most: int) -> None:
        self.count = 0
        self._most = most
        self._entries = np.empty((most, most), np.int64)
        self._depths = np.empty(most, np.int64)
        self._parents = np.empty(most, np.int64)

    def clear(self) -> None:
        self.count = 0

    def append(self, parents: Sequence[int] | None, count: int) -> None:
        first, stop = self.count, self.count + count
        check_pending(parents, first, count, self._most)
        if parents is None:
            chain = np.arange(count)
            self._entries[:count, :count] = chain
            self._depths[:count] = chain
            self._parents[:count] = chain - 1
        else:
            for entry, parent in enumerate(parents, first):
                depth = 0 if parent == FOLLOWS_PREFIX else int(self._depths[parent]) + 1
                self._entries[entry, :depth] = self._entries[parent, :depth]
                self._entries[entry, depth] = entry
                self._depths[entry] = depth
                self._parents[entry] = parent
        self.count = stop

    def paths_from(self, first: int, lane: int, start: int) -> SessionPaths:
        """The paths of the entries from `first` on."""
        depths = self._depths[first : self.count].copy()
        places = start + self._entries[first : self.count, : int(depths.max()) + 1]
        follows = np.maximum(self._parents[first : self.count] - first, -1)
        return SessionPaths(lane, start, start + first, depths, places, follows)

    def commit_kv(self, confirmed: int, surviving: Sequence[int]) -> None:
        """Keep the `surviving` entries, parents first, below `confirmed` confirmed ones."""
        old = np.array(surviving, np.int64)
        renumbered = np.full(self.count + 1, -1)  # the last one stands for no parent
        renumbered[old] = np.arange(len(old))
        depths = self._depths[old] - confirmed
        paths = self._entries[old, confirmed : confirmed + int(depths.max(initial=-1)) + 1]
        parents = renumbered[self._parents[old]]
        self.count = len(old)
        self._depths[: self.count] = depths
        self._parents[: self.count] = parents
        for entry, depth in enumerate(depths):
            self._entries[entry, : depth + 1] = renumbered[paths[entry, : depth + 1]]

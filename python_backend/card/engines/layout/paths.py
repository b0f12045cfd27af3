"""One lane per session; pending rows lie behind the prefix in the order they came, and every row
knows the places of its path.

For attention that follows paths: chains, trees that a query found and trees that grow are one case,
and no row depends on where another one lies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from card.engines.interface import FOLLOWS_PREFIX, SequenceTokens
from card.engines.layout.plan import (
    KeyValueStore,
    Pass,
    Scattered,
    SessionPaths,
    last_rows,
)
from card.engines.layout.sessions import OneLaneEach, check_pending


class PathLayout(OneLaneEach):
    """Implements `plan.Layout` with paths.

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

    def plan(self, batch: Sequence[SequenceTokens]) -> Pass:
        paths = []
        lanes, places = [], []
        for rows in batch:
            start, pending = self._sessions.length[rows.session], self._pending[rows.session]
            first = pending.count
            pending.append(rows.parents, len(rows.tokens))
            paths.append(pending.paths_from(first, rows.session, start))
            lanes.append(np.full(len(rows.tokens), rows.session))
            places.append(np.arange(start + first, start + pending.count))
        return Pass(
            tokens=np.array([token for rows in batch for token in rows.tokens], np.int64),
            positions=np.concatenate([one.start + one.depths for one in paths]),
            destination=Scattered(np.concatenate(lanes), np.concatenate(places)),
            groups=[],
            scatter=None,
            logit_rows=last_rows([len(rows.tokens) for rows in batch], batch),
            paths=paths,
        )

    def commit_kv(self, session: int, confirmed: Sequence[int], surviving: Sequence[int]) -> None:
        """Confirmed entries join the prefix, survivors follow it, everything else is dropped."""
        moved = [*confirmed, *surviving]
        if moved != list(range(len(moved))):
            self._kv.gather(session, self._sessions.length[session], np.array(moved, np.int64))
        self._pending[session].commit_kv(len(confirmed), surviving)
        self._sessions.length[session] += len(confirmed)


class _Pending:
    """Rows of one session that nobody confirmed yet.

    _entries  [most, most] int64: entries of each row's path, its own last; memory that nobody
              wrote is not taken
    _depths   [most] int64: 0 for those that follow the prefix
    _parents  [most] int64: the entry that each follows, -1 for the prefix
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
        """Of the entries from `first` on."""
        depths = self._depths[first : self.count].copy()
        places = start + self._entries[first : self.count, : int(depths.max()) + 1]
        follows = self._parents[first : self.count] - first
        return SessionPaths(lane, start, depths, places, np.maximum(follows, -1))

    def commit_kv(self, confirmed: int, surviving: Sequence[int]) -> None:
        """Keep entries, parents first, whose paths begin with so many that were confirmed."""
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

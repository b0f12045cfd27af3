"""One lane per session; a growing tree lies behind the prefix in the order it was grown.

A mask of ancestors says who sees whom. Cheaper to grow than chains, and not row-invariant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from card.engines.interface import FOLLOWS_PREFIX, SequenceTokens
from card.engines.layout.plan import (
    EXTENT_MULTIPLE,
    HIDDEN,
    AttentionGroup,
    KeyValueStore,
    Pass,
    Scattered,
    doubled_up,
    last_rows,
    rounded_up,
)
from card.engines.layout.sessions import OneLaneEach, check_pending


class TreeLayout(OneLaneEach):
    """Implements `plan.Layout` with masks.

    pending  most unconfirmed entries of a session
    """

    def __init__(self, kv: KeyValueStore, sessions: int, pending: int) -> None:
        super().__init__(sessions)
        self._kv = kv
        self._pending = pending
        self._depths: list[list[int]] = [[] for _ in range(sessions)]
        """Of every pending entry, 0 for those that follow the prefix."""
        # Row 0 is the prefix: it sees no pending entry. Row e + 1 is entry e. What lies behind
        # the last entry stays hidden, so rows are masks as they stand. They have room for the
        # entries that a session came to have: for all that it may have it grows with the square.
        self._sees = [_seeing_nothing(0) for _ in range(sessions)]

    def open(self, length: int = 0) -> int:
        session = super().open(length)
        self._depths[session] = []
        self._sees[session] = _seeing_nothing(0)
        return session

    def plan(self, batch: Sequence[SequenceTokens]) -> Pass:
        for rows in batch:
            self._append(rows)
        sessions = [rows.session for rows in batch]
        counts = [len(rows.tokens) for rows in batch]
        starts = [self._sessions.length[session] for session in sessions]
        stops = [len(self._depths[session]) for session in sessions]
        lanes = range(min(sessions), max(sessions) + 1)
        longest = max(counts)
        mask_from = min(starts)
        ends = [start + stop for start, stop in zip(starts, stops, strict=True)]
        extent = rounded_up(max(ends), EXTENT_MULTIPLE)
        # Rows that stand for nobody see everything, or their softmax would not be a number.
        mask = np.zeros((len(lanes), longest, extent - mask_from), np.float32)
        gather = np.zeros((len(lanes), longest), dtype=np.int64)
        scatter, places = [], []
        positions: list[int] = []
        base = 0
        for session, count, start, stop in zip(sessions, counts, starts, stops, strict=True):
            lane = session - lanes.start
            mask[lane, :count, start - mask_from :] = HIDDEN
            mask[lane, :count, start - mask_from : start - mask_from + stop] = self._sees[session][
                stop - count + 1 : stop + 1, :stop
            ]
            gather[lane, :count] = np.arange(base, base + count)
            scatter.append(lane * longest + np.arange(count))
            positions.extend(start + depth for depth in self._depths[session][stop - count :])
            places.append(np.arange(start + stop - count, start + stop))
            base += count
        return Pass(
            tokens=np.array([token for rows in batch for token in rows.tokens], np.int64),
            positions=np.array(positions, np.int64),
            destination=Scattered(np.repeat(np.array(sessions), counts), np.concatenate(places)),
            groups=[
                AttentionGroup(
                    lanes,
                    longest,
                    extent,
                    gather.reshape(-1),
                    mask,
                    mask_from,
                )
            ],
            scatter=np.concatenate(scatter),
            logit_rows=last_rows(counts, batch),
        )

    def _append(self, rows: SequenceTokens) -> None:
        """Give the rows entries: their depth and whom they see."""
        count, depths = len(rows.tokens), self._depths[rows.session]
        first = len(depths)
        stop = first + count
        check_pending(rows.parents, first, count, self._pending)
        sees = self._with_room(rows.session, stop)
        if rows.parents is None:
            depths.extend(range(count))
            sees[1 : stop + 1] = HIDDEN
            sees[1 : stop + 1, :stop] = np.triu(np.full((count, count), HIDDEN, np.float32), 1)
            return
        for entry, parent in enumerate(rows.parents, first):
            # A parent sees nothing behind itself, so its row is a child's but for the child.
            sees[entry + 1] = sees[parent + 1]
            sees[entry + 1, entry] = 0.0
            depths.append(0 if parent == FOLLOWS_PREFIX else depths[parent] + 1)

    def _with_room(self, session: int, entries: int) -> NDArray[np.float32]:
        """Whom the session's entries see, with room for so many of them."""
        sees = self._sees[session]
        if entries >= len(sees):
            known = sees
            sees = _seeing_nothing(doubled_up(entries, EXTENT_MULTIPLE, self._pending))
            sees[: known.shape[0], : known.shape[1]] = known
            self._sees[session] = sees
        return sees

    def commit_kv(self, session: int, confirmed: Sequence[int], surviving: Sequence[int]) -> None:
        """Confirmed entries join the prefix, survivors follow it, everything else is dropped."""
        start = self._sessions.length[session]
        count, stay = len(confirmed), len(surviving)
        moved = [*confirmed, *surviving]
        if moved != list(range(len(moved))):
            self._kv.gather(session, start, np.array(moved, np.int64))
        if surviving:
            index = np.array(surviving, np.int64)
            sees = self._sees[session]
            seen = sees[np.ix_(index + 1, index)]
            sees[1 : stay + 1] = HIDDEN
            sees[1 : stay + 1, :stay] = seen
        depths = self._depths[session]
        self._depths[session] = [depths[entry] - count for entry in surviving]
        self._sessions.length[session] = start + count


def _seeing_nothing(entries: int) -> NDArray[np.float32]:
    """Masks of the prefix and so many entries that see none of them."""
    return np.full((entries + 1, entries + EXTENT_MULTIPLE), HIDDEN, np.float32)

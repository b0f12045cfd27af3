"""Every root-to-leaf path of a pass as a contiguous chain in a lane of its own.

A row's keys stand at their absolute positions in order, so its arithmetic never depends on what
else was asked. Lanes of one session are replicas of its confirmed prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from card.engines.interface import FOLLOWS_PREFIX, SequenceTokens
from card.engines.layout.plan import (
    EXTENT_MULTIPLE,
    HIDDEN,
    SHORT,
    AttentionGroup,
    Destination,
    KeyValueStore,
    Pass,
    Scattered,
    Stretch,
    rounded_up,
)
from card.engines.layout.sessions import Sessions


@dataclass(slots=True)
class _PlacedRows:
    """One session's rows: chains of them, one per lane from `first_lane` on, behind `start`.

    longest  rows of its longest chain, without padding
    """

    first_lane: int
    start: int
    chains: list[list[int]]
    longest: int


class ChainLayout:
    """Implements `plan.Layout` with chains.

    branches      lanes per session, the most chains one pass may hold
    row_multiple  rows of a chain are padded to this, for kernels that differ below it
    """

    def __init__(self, kv: KeyValueStore, sessions: int, branches: int, row_multiple: int) -> None:
        self._kv = kv
        self._branches = branches
        self._multiple = row_multiple
        self._sessions = Sessions(sessions)
        self._placed: dict[int, _PlacedRows] = {}
        self._masks = _masks_by_position(kv.places)

    def open(self, length: int = 0) -> int:
        return self._sessions.open(length)

    def close(self, session: int) -> None:
        self._placed.pop(session, None)
        self._sessions.close(session)

    def length(self, session: int) -> int:
        return self._sessions.length[session]

    def lanes(self, session: int) -> range:
        return range(session * self._branches, (session + 1) * self._branches)

    def plan(self, batch: Sequence[SequenceTokens]) -> Pass:
        tokens: list[int] = []
        positions: list[int] = []
        writes: list[tuple[int, int, int]] = []  # row, lane, place
        logit_rows: list[int] = []
        members: list[tuple[int, _PlacedRows]] = []
        for index, rows in enumerate(batch):
            base = len(tokens)
            count = len(rows.tokens)
            placed, depth = self._place(rows)
            if index == len(batch) - 1 and (padded := self._padding(base, count)):
                # Padding continues a chain; nobody reads what it computes or writes.
                end = len(placed.chains[0])
                placed.chains[0].extend(range(count, count + padded))
                depth = depth + list(range(end, end + padded))
            tokens.extend(rows.tokens)
            tokens.extend([0] * (base + len(depth) - len(tokens)))
            positions.extend(placed.start + d for d in depth)
            wanted = rows.wanted
            logit_rows.extend(range(base + count - wanted, base + count))
            for lane, chain in enumerate(placed.chains, placed.first_lane):
                writes.extend((base + row, lane, placed.start + i) for i, row in enumerate(chain))
            members.append((base, placed))
            self._placed[rows.session] = placed
        groups, scatter = self._group(members, len(tokens))
        every_row = len(logit_rows) == len(tokens)
        if not every_row and self._multiple > 1:
            logit_rows += logit_rows[-1:] * (-len(logit_rows) % self._multiple)
        return Pass(
            tokens=np.array(tokens, np.int64),
            positions=np.array(positions, np.int64),
            destination=self._destination(members, writes, len(tokens)),
            groups=groups,
            scatter=scatter,
            logit_rows=None if every_row else np.array(logit_rows, np.int64),
        )

    def _padding(self, before: int, count: int) -> int:
        """Rows to add to the last session's `count`, with `before` rows of others in the pass.

        A session alone is attended as its rows stand, so they are made a multiple. Rows of several
        are padded where they are attended, and together they only must not be too few.
        """
        if before == 0:
            return rounded_up(count, self._multiple) - count
        return max(0, self._multiple - before - count)

    def _destination(
        self,
        members: list[tuple[int, _PlacedRows]],
        writes: list[tuple[int, int, int]],
        rows: int,
    ) -> Destination:
        first = members[0][1]
        if len(members) == 1 and first.chains == [list(range(rows))]:
            return Stretch(first.first_lane, first.start)
        row, lane, place = np.array(writes, dtype=np.int64).T
        return Scattered(lane, place, row)

    def _place(self, rows: SequenceTokens) -> tuple[_PlacedRows, list[int]]:
        """Chains of the rows and the depth of each row behind the prefix."""
        count = len(rows.tokens)
        first = rows.session * self._branches
        start = self._sessions.length[rows.session]
        if rows.parents is None:
            return _PlacedRows(first, start, [list(range(count))], count), list(range(count))
        depth: list[int] = []
        paths: list[list[int]] = []
        is_parent = [False] * count
        for row, parent in enumerate(rows.parents):
            if parent == FOLLOWS_PREFIX:
                depth.append(0)
                paths.append([row])
            else:
                depth.append(depth[parent] + 1)
                paths.append([*paths[parent], row])
                is_parent[parent] = True
        chains = [paths[row] for row in range(count) if not is_parent[row]]
        if len(chains) > self._branches:
            raise ValueError(f"{len(chains)} branches in a pass; the engine holds {self._branches}")
        return _PlacedRows(first, start, chains, max(map(len, chains))), depth

    def _group(
        self, members: list[tuple[int, _PlacedRows]], rows: int
    ) -> tuple[list[AttentionGroup], NDArray[np.int64] | None]:
        groups = []
        scatter = np.zeros(rows, dtype=np.int64)
        offset = 0
        for bucket, placed_rows in self._buckets(members):
            lanes = range(
                min(p.first_lane for _, p in placed_rows),
                max(p.first_lane + len(p.chains) for _, p in placed_rows),
            )
            gather = np.zeros((len(lanes), bucket), dtype=np.int64)
            position = np.zeros((len(lanes), bucket), dtype=np.int64)
            for base, placed in placed_rows:
                for lane, chain in enumerate(placed.chains, placed.first_lane - lanes.start):
                    at = base + np.array(chain)
                    gather[lane, : len(chain)] = at
                    position[lane, : len(chain)] = placed.start + np.arange(len(chain))
                    scatter[at] = offset + lane * bucket + np.arange(len(chain))
            groups.append(self._attention_group(lanes, bucket, gather, position))
            offset += len(lanes) * bucket
        identity = len(scatter) == offset and bool((scatter == np.arange(offset)).all())
        if identity and len(groups) == 1:
            groups = [replace(groups[0], gather=None)]
        return groups, None if identity else scatter

    def _buckets(
        self, members: list[tuple[int, _PlacedRows]]
    ) -> list[tuple[int, list[tuple[int, _PlacedRows]]]]:
        """Sessions attended together and the rows their chains are padded to: those that decode
        in one group, a prefill chunk in a group of its own."""
        groups: dict[int, list[tuple[int, _PlacedRows]]] = {}
        for number, member in enumerate(members, 1):
            # Padding, which may be longer than all they ask, makes no chunk of those that decode.
            alone = member[1].longest > SHORT
            groups.setdefault(number if alone else 0, []).append(member)
        return [
            (
                rounded_up(max(len(c) for _, p in group for c in p.chains), self._multiple),
                group,
            )
            for group in groups.values()
        ]

    def _attention_group(
        self,
        lanes: range,
        rows: int,
        gather: NDArray[np.int64],
        position: NDArray[np.int64],
    ) -> AttentionGroup:
        extent = rounded_up(int(position.max()) + 1, EXTENT_MULTIPLE)
        mask_from = int(position.min()) + 1
        mask = self._masks[position, mask_from:extent]
        return AttentionGroup(lanes, rows, extent, gather.reshape(-1), mask, mask_from)

    def commit_kv(self, session: int, confirmed: Sequence[int], surviving: Sequence[int]) -> None:
        """Confirm a path of the last pass; nothing else survives in this layout."""
        if surviving:
            raise ValueError("a chain layout keeps no pending entries")
        count = len(confirmed)
        if not count:
            return
        placed = self._placed[session]
        wanted = list(confirmed)
        lane = next(
            lane
            for lane, chain in enumerate(placed.chains, placed.first_lane)
            if chain[:count] == wanted
        )
        self._sessions.length[session] = placed.start + count
        if self._branches > 1:
            start, stop = placed.start, placed.start + count
            self._kv.copy(lane, start, stop, self.lanes(session), start)


def _masks_by_position(places: int) -> NDArray[np.float32]:
    """[places, places], what a row at each position sees: windows over one vector."""
    ramp = np.full(2 * places - 1, HIDDEN, np.float32)
    ramp[:places] = 0.0
    step = ramp.itemsize
    return as_strided(ramp[places - 1 :], (places, places), (-step, step), writeable=False)

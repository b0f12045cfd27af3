"""Where rows stand: how the rows of sessions become one pass over KV lanes.

Two layouts behind one interface (`plan`, `keep`, `open`, `close`, `length`):

`ChainLayout` (target)  every root-to-leaf path of a tree is a contiguous chain in a lane of its
own, at its absolute positions, so that a row's arithmetic never depends on what else was asked.
Lanes of one session are replicas of its confirmed prefix.

`TreeLayout` (draft)  one lane per session; a growing tree lies behind the prefix in the order it
was grown, and a mask of ancestors says who sees whom. Cheaper to grow, not row-invariant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.interface import FOLLOWS_PREFIX, EngineError, Rows
from card.engines.torch.attention import EXTENT_MULTIPLE, AttentionGroup
from card.engines.torch.decoder import Pass
from card.engines.torch.kv import KeyValueCache

_HIDDEN = float("-inf")


class Layout(Protocol):
    """Sessions of one engine and the places of their rows."""

    def open(self) -> int: ...

    def close(self, session: int) -> None: ...

    def length(self, session: int) -> int: ...

    def plan(self, batch: Sequence[Rows]) -> Pass: ...

    def keep(self, session: int, confirmed: Sequence[int], surviving: Sequence[int]) -> None: ...


def rounded_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class _Sessions:
    """Session numbers, lowest first, so that a pass covers few idle lanes."""

    def __init__(self, count: int) -> None:
        self.length = [0] * count
        self._taken = [False] * count

    def open(self) -> int:
        for session, taken in enumerate(self._taken):
            if not taken:
                self._taken[session] = True
                self.length[session] = 0
                return session
        raise EngineError(f"all {len(self._taken)} sessions of the engine are taken")

    def close(self, session: int) -> None:
        self._taken[session] = False


@dataclass(slots=True)
class _PlacedRows:
    """One session's rows: the chains they lie in and where each row's output is found."""

    first_lane: int
    start: int
    chains: list[list[int]]
    home: list[tuple[int, int]] = field(default_factory=list)


class ChainLayout:
    """Contiguous chains; see the module's text.

    branches      lanes per session, the most chains one pass may hold
    row_multiple  rows of a chain are padded to this, for kernels that differ below it
    """

    def __init__(
        self, kv: KeyValueCache, sessions: int, branches: int, row_multiple: int
    ) -> None:
        self._kv = kv
        self._branches = branches
        self._multiple = row_multiple
        self._sessions = _Sessions(sessions)
        self._placed: dict[int, _PlacedRows] = {}
        self._places = torch.arange(kv.places)

    def open(self) -> int:
        return self._sessions.open()

    def close(self, session: int) -> None:
        self._placed.pop(session, None)
        self._sessions.close(session)

    def length(self, session: int) -> int:
        return self._sessions.length[session]

    def plan(self, batch: Sequence[Rows]) -> Pass:
        tokens: list[int] = []
        positions: list[int] = []
        writes: list[tuple[int, int, int]] = []  # row, lane, place
        logit_rows: list[int] = []
        members: dict[int, list[tuple[int, _PlacedRows]]] = {}
        for rows in batch:
            base = len(tokens)
            count = len(rows.tokens)
            placed, depth = self._place(rows)
            padded = rounded_up(count, self._multiple) - count if rows.parents is None else 0
            if padded:
                # Padding continues the chain; nobody reads what it computes or writes.
                placed.chains[0].extend(range(count, count + padded))
                depth = depth + list(range(count, count + padded))
            tokens.extend(rows.tokens)
            tokens.extend([0] * padded)
            positions.extend(placed.start + d for d in depth)
            wanted = count if rows.logits is None else rows.logits
            logit_rows.extend(range(base + count - wanted, base + count))
            for lane, chain in enumerate(placed.chains, placed.first_lane):
                writes.extend((base + row, lane, placed.start + i) for i, row in enumerate(chain))
            longest = max(len(chain) for chain in placed.chains)
            bucket = rounded_up(longest, max(self._multiple, 16)) if len(batch) > 1 else longest
            members.setdefault(bucket, []).append((base, placed))
            self._placed[rows.session] = placed
        groups, scatter = self._group(members, len(tokens))
        write = np.array(writes, dtype=np.int64)
        in_order = len(writes) == len(tokens) and bool((write[:, 0] == np.arange(len(tokens))).all())
        every_row = len(logit_rows) == len(tokens)
        if not every_row and self._multiple > 1:
            logit_rows += logit_rows[-1:] * (-len(logit_rows) % self._multiple)
        return Pass(
            tokens=torch.tensor(tokens),
            positions=torch.tensor(positions),
            write_source=None if in_order else torch.from_numpy(write[:, 0].copy()),
            write_index=self._kv.write_index(write[:, 1], write[:, 2]),
            groups=groups,
            scatter=scatter,
            logit_rows=None if every_row else torch.tensor(logit_rows, dtype=torch.int64),
        )

    def _place(self, rows: Rows) -> tuple[_PlacedRows, list[int]]:
        """Chains of the rows and the depth of each row behind the prefix."""
        count = len(rows.tokens)
        first = rows.session * self._branches
        start = self._sessions.length[rows.session]
        if rows.parents is None:
            return _PlacedRows(first, start, [list(range(count))]), list(range(count))
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
        return _PlacedRows(first, start, chains), depth

    def _group(
        self, members: dict[int, list[tuple[int, _PlacedRows]]], rows: int
    ) -> tuple[list[AttentionGroup], Tensor | None]:
        groups = []
        scatter = np.zeros(rows, dtype=np.int64)
        offset = 0
        for bucket, placed_rows in members.items():
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
            groups = [_without_gather(groups[0])]
        return groups, None if identity else torch.from_numpy(scatter)

    def _attention_group(
        self,
        lanes: range,
        rows: int,
        gather: NDArray[np.int64],
        position: NDArray[np.int64],
    ) -> AttentionGroup:
        extent = rounded_up(int(position.max()) + 1, EXTENT_MULTIPLE)
        mask_from = int(position.min()) + 1
        visible = torch.from_numpy(position).view(len(lanes), 1, rows, 1, 1)
        mask = torch.zeros(len(lanes), 1, rows, 1, extent - mask_from, dtype=self._kv.dtype)
        mask.masked_fill_(self._places[mask_from:extent] > visible, _HIDDEN)
        return AttentionGroup(
            lanes, rows, extent, torch.from_numpy(gather.reshape(-1)), mask, mask_from
        )

    def keep(self, session: int, confirmed: Sequence[int], surviving: Sequence[int]) -> None:
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
            lanes = range(placed.first_lane, placed.first_lane + self._branches)
            self._kv.replicate(lane, lanes, placed.start, placed.start + count)


def _without_gather(group: AttentionGroup) -> AttentionGroup:
    return AttentionGroup(
        group.lanes, group.rows, group.extent, None, group.mask, group.mask_from
    )


class TreeLayout:
    """A growing tree behind each prefix; see the module's text.

    pending  most unconfirmed entries of a session
    """

    def __init__(self, kv: KeyValueCache, sessions: int, pending: int) -> None:
        self._kv = kv
        self._pending = pending
        self._sessions = _Sessions(sessions)
        self._count = [0] * sessions
        self._depth = np.zeros((sessions, pending), dtype=np.int64)
        # Row 0 is the prefix: it sees no pending entry. Row e + 1 is entry e.
        self._sees = torch.full((sessions, pending + 1, pending), _HIDDEN, dtype=kv.dtype)
        self._chain = torch.full((pending, pending), _HIDDEN, dtype=kv.dtype).triu_(1)

    def open(self) -> int:
        session = self._sessions.open()
        self._count[session] = 0
        return session

    def close(self, session: int) -> None:
        self._sessions.close(session)

    def length(self, session: int) -> int:
        return self._sessions.length[session]

    def plan(self, batch: Sequence[Rows]) -> Pass:
        longest = max(len(rows.tokens) for rows in batch)
        lanes = range(
            min(rows.session for rows in batch), max(rows.session for rows in batch) + 1
        )
        total = sum(len(rows.tokens) for rows in batch)
        position = np.empty(total, dtype=np.int64)
        place = np.empty(total, dtype=np.int64)
        lane = np.empty(total, dtype=np.int64)
        tokens: list[int] = []
        logit_rows: list[int] = []
        for rows in batch:
            at = slice(len(tokens), len(tokens) + len(rows.tokens))
            start, first = self._sessions.length[rows.session], self._count[rows.session]
            self._append(rows)
            entries = slice(first, self._count[rows.session])
            position[at] = start + self._depth[rows.session, entries]
            place[at] = np.arange(start + first, start + first + len(rows.tokens))
            lane[at] = rows.session
            tokens.extend(rows.tokens)
            wanted = len(rows.tokens) if rows.logits is None else rows.logits
            logit_rows.extend(range(at.stop - wanted, at.stop))
        group, scatter = self._group(batch, lanes, longest)
        return Pass(
            tokens=torch.tensor(tokens),
            positions=torch.from_numpy(position),
            write_source=None,
            write_index=self._kv.write_index(lane, place),
            groups=[group],
            scatter=scatter,
            logit_rows=None
            if len(logit_rows) == total
            else torch.tensor(logit_rows, dtype=torch.int64),
        )

    def _append(self, rows: Rows) -> None:
        """Give the rows entries: their depth and whom they see."""
        session, count = rows.session, len(rows.tokens)
        first = self._count[session]
        stop = first + count
        if stop > self._pending:
            raise EngineError(f"{stop} pending entries; a session holds {self._pending}")
        sees = self._sees[session]
        if rows.parents is None:
            if first:
                raise ValueError("a chain continues the prefix only when nothing is pending")
            self._depth[session, :count] = np.arange(count)
            sees[1 : count + 1, :count] = self._chain[:count, :count]
        else:
            parents = np.asarray(rows.parents, dtype=np.int64)
            self._depth[session, first:stop] = np.where(
                parents == FOLLOWS_PREFIX, 0, self._depth[session, parents] + 1
            )
            sees[first + 1 : stop + 1, :first] = sees[:, :first].index_select(
                0, torch.from_numpy(parents + 1)
            )
            sees[first + 1 : stop + 1, first:stop] = self._own(count)
        self._count[session] = stop

    def _own(self, count: int) -> Tensor:
        own = torch.full((count, count), _HIDDEN, dtype=self._kv.dtype)
        return own.fill_diagonal_(0.0)

    def _group(
        self, batch: Sequence[Rows], lanes: range, longest: int
    ) -> tuple[AttentionGroup, Tensor | None]:
        ends = [self._sessions.length[r.session] + self._count[r.session] for r in batch]
        extent = rounded_up(max(ends), EXTENT_MULTIPLE)
        mask_from = min(self._sessions.length[r.session] for r in batch)
        mask = torch.full((len(lanes), longest, extent - mask_from), _HIDDEN, dtype=self._kv.dtype)
        gather = np.zeros((len(lanes), longest), dtype=np.int64)
        scatter = []
        base = 0
        for rows in batch:
            count, lane = len(rows.tokens), rows.session - lanes.start
            pending = self._count[rows.session]
            before = self._sessions.length[rows.session] - mask_from
            mask[lane, :count, :before] = 0.0
            mask[lane, :count, before : before + pending] = self._sees[
                rows.session, pending - count + 1 : pending + 1, :pending
            ]
            gather[lane, :count] = np.arange(base, base + count)
            scatter.append(lane * longest + np.arange(count))
            base += count
        one = len(batch) == 1
        if not one:
            # Rows that stand for nobody must see something, or their softmax is not a number.
            mask[torch.isinf(mask).all(-1)] = 0.0
        group = AttentionGroup(
            lanes,
            longest,
            extent,
            None if one else torch.from_numpy(gather.reshape(-1)),
            mask.view(len(lanes), 1, longest, 1, -1),
            mask_from,
        )
        return group, None if one else torch.from_numpy(np.concatenate(scatter))

    def keep(self, session: int, confirmed: Sequence[int], surviving: Sequence[int]) -> None:
        """Confirmed entries join the prefix, survivors follow it, everything else is dropped."""
        start = self._sessions.length[session]
        count, stay = len(confirmed), list(surviving)
        moved = [*confirmed, *stay]
        if moved != list(range(len(moved))):
            self._kv.gather(session, start, torch.tensor(moved))
        if stay:
            index = torch.tensor(stay)
            sees = self._sees[session]
            sees[1 : len(stay) + 1, : len(stay)] = sees.index_select(0, index + 1).index_select(
                1, index
            )
            self._depth[session, : len(stay)] = self._depth[session, stay] - count
        self._sessions.length[session] = start + count
        self._count[session] = len(stay)

"""What a layout hands to an engine: one pass, and what it asks of a KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from card.engines.interface import SequenceTokens

EXTENT_MULTIPLE = 128
"""Visible places of a pass are rounded up to this, so that few shapes of passes exist."""

SHORT = 16
"""Rows of a session up to this many are attended together with those of other sessions, padded to
the most among them."""

HIDDEN = float("-inf")
"""Mask value of a place that a row must not see."""


@dataclass(slots=True)
class Stretch:
    """Rows that go to neighbouring places of one lane, in order: the case of one session."""

    lane: int
    place: int


@dataclass(slots=True)
class Scattered:
    """Rows that go anywhere.

    lane, place  [writes] int64
    source       [writes] int64, the pass's row of each; None: every row in order
    """

    lane: NDArray[np.int64]
    place: NDArray[np.int64]
    source: NDArray[np.int64] | None = None


Destination = Stretch | Scattered


@dataclass(slots=True)
class AttentionGroup:
    """Lanes of one pass that are attended together.

    lanes      the range of KV lanes
    rows       rows per lane (padded)
    extent     places looked at, from 0
    gather     [lanes * rows] int64, the pass's row at each (lane, row); None: rows in order
    mask       [lanes, rows, extent - mask_from] float32, 0 or -inf, for places from `mask_from`;
               every row sees all places before
    """

    lanes: range
    rows: int
    extent: int
    gather: NDArray[np.int64] | None
    mask: NDArray[np.float32]
    mask_from: int


@dataclass(slots=True)
class SessionPaths:
    """Where the rows of one session look, in a pass that has no masks.

    lane     of the KV cache
    start    places before it are the prefix of every row, in order
    depths   [rows] int64: a row stands at position start + depth
    places   [rows, deepest + 1] int64: of each row's path from `start` on, its own last; behind
             that anything
    follows  [rows] int64: the row of this session that each follows, if the pass has it; else -1
    """

    lane: int
    start: int
    depths: NDArray[np.int64]
    places: NDArray[np.int64]
    follows: NDArray[np.int64]


@dataclass(slots=True)
class RowPages:
    """Where rows look places up, and store.

    table   [any] int32, numbers of pages, those of one path one after another
    first   [rows] int32: where in `table` those of each row's path begin
    begins  [sequences] int64, the first row of each chain that is attended as one
    """

    table: NDArray[np.int32]
    first: NDArray[np.int32]
    begins: NDArray[np.int64]


@dataclass(slots=True)
class Pass:
    """What one forward pass computes.

    tokens, positions  [rows] int64; positions are absolute
    destination        where the rows' keys and values are stored
    groups             lanes attended together; none: every row by itself, over its path
    scatter            [rows] int64, each row's place in the groups' outputs, one after another;
                       None: same
    logit_rows         [n] int64, rows whose logits are wanted; None: all
    paths              of each session, in the order of the rows; None: rows have no paths
    pages              of every row; None: rows look up no pages
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    destination: Destination
    groups: list[AttentionGroup]
    scatter: NDArray[np.int64] | None
    logit_rows: NDArray[np.int64] | None
    paths: list[SessionPaths] | None = None
    pages: RowPages | None = None


class KeyValueBuffers(Protocol):
    """Keys and values of every lane."""

    def copy(self, source: int, start: int, stop: int, lanes: range, to: int) -> None:
        """Copy places [start, stop) of lane `source` to `lanes`, from place `to` on."""


class KeyValueStore(KeyValueBuffers, Protocol):
    """What a layout asks of them."""

    @property
    def places(self) -> int:
        """Positions of one lane."""

    def gather(self, lane: int, start: int, sources: NDArray[np.int64]) -> None:
        """Move the entries at `start + sources` of a lane to `start`, `start + 1`, ..."""


class Layout(Protocol):
    """Sessions of one engine and the places of their rows."""

    def open(self, length: int = 0) -> int:
        """A session whose prefix has so many places, which the caller fills."""

    def lanes(self, session: int) -> range:
        """Those that hold the session's prefix. Lanes of sessions lie one after another."""

    def close(self, session: int) -> None: ...

    def length(self, session: int) -> int: ...

    def plan(self, batch: Sequence[SequenceTokens]) -> Pass: ...

    def commit_kv(
        self, session: int, confirmed: Sequence[int], surviving: Sequence[int]
    ) -> None: ...


def rounded_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def doubled_up(value: int, unit: int, most: int) -> int:
    """The first of `unit`, 2 units, 4 units, ... that is enough, but no more than `most`."""
    units = -(-value // unit)
    return min(unit << (units - 1).bit_length(), most)


def last_rows(counts: Sequence[int], batch: Sequence[SequenceTokens]) -> NDArray[np.int64] | None:
    """The rows of a pass whose logits are wanted; None: all."""
    if all(rows.logits is None for rows in batch):
        return None
    wanted: list[int] = []
    end = 0
    for count, rows in zip(counts, batch, strict=True):
        end += count
        wanted.extend(range(end - rows.wanted, end))
    return np.array(wanted, np.int64)

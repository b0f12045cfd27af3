"""Engines that run checkpoints themselves: sessions over lanes of a KV cache, and kept texts.

A session has a lane of its own and a prefix in it. Lanes for kept texts follow: the KV of texts is
kept in blocks for later texts with the same beginning.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from card.engines.architecture import Architecture
from card.engines.interface import (
    BLOCK,
    COSTED_ROWS,
    EngineError,
    Logits,
    Ranking,
    RowCosts,
    SequenceTokens,
    Text,
    forward_one_by_one,
)
from card.engines.options import MAX_PASS_ROWS, EngineOptions

EXTENT_MULTIPLE = 128
"""The number of places of a KV cache's lane is a multiple of this."""

SHORT = 16
"""A session with at most this many rows shares a pass with other sessions."""


class KeyValueBuffers(Protocol):
    """Keys and values of every lane. Session `n` has lane `n`; lanes of kept texts follow."""

    def copy(self, source: int, start: int, stop: int, lane: int, to: int) -> None:
        """Copy places [start, stop) of lane `source` to `lane`, from place `to` on."""


class Sessions:
    """Session numbers, lowest first, and the lengths of confirmed prefixes.

    A subclass has `plan(batch)`, which gives the rows of a batch places and returns its own type of
    pass.
    """

    def __init__(self, count: int) -> None:
        self.lengths = [0] * count
        self._taken = [False] * count

    def open(self, length: int = 0) -> int:
        for session, taken in enumerate(self._taken):
            if not taken:
                self._taken[session] = True
                self.lengths[session] = length
                return session
        raise EngineError(f"all {len(self._taken)} sessions of the engine are taken")

    def close(self, session: int) -> None:
        self._taken[session] = False

    def length(self, session: int) -> int:
        return self.lengths[session]

    def commit_kv(self, session: int, confirmed: Sequence[int], surviving: Sequence[int]) -> None:
        raise NotImplementedError


def check_pending(parents: Sequence[int] | None, known: int, more: int, most: int) -> None:
    """Raises unless `more` rows may become pending entries behind `known` ones; a session has room
    for `most`."""
    if known + more > most:
        raise EngineError(f"{known + more} pending entries; a session holds {most}")
    if parents is None and known:
        raise ValueError("a chain continues the prefix only when nothing is pending")


def rounded_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def wanted_logit_rows(batch: Sequence[SequenceTokens]) -> NDArray[np.int64]:
    """[n], the rows of a pass that need logits: the last ones of each session."""
    wanted: list[int] = []
    end = 0
    for rows in batch:
        end += len(rows.tokens)
        wanted.extend(range(end - rows.wanted, end))
    return np.array(wanted, np.int64)


def lane_places(options: EngineOptions) -> int:
    """Places of a lane of the KV cache, with room for padding and pending entries behind the
    context's last position."""
    return rounded_up(options.context + most_pending(options), EXTENT_MULTIPLE)


def kept_lanes(options: EngineOptions) -> int:
    """Number of lanes for kept texts, behind the lanes of sessions."""
    return -(-options.kept_tokens // lane_places(options))


def most_pending(options: EngineOptions) -> int:
    """Most unconfirmed entries of a session."""
    return max(options.pending, MAX_PASS_ROWS)


class SessionEngine:
    """Sessions, their layout and the costs measured at load; a subclass computes passes.

    kv  has a lane of `lane_places` for every session, then `kept_lanes`
    """

    def __init__(
        self,
        architecture: Architecture,
        options: EngineOptions,
        kv: KeyValueBuffers,
        layout: Sessions,
    ) -> None:
        self.architecture = architecture
        self.options = options
        self.row_invariant = False
        self.row_costs = RowCosts({})
        self._layout = layout
        self._kept = KeptTexts(kv, options.sessions, lane_places(options), options.kept_tokens)

    def know_costs(self, costs: RowCosts) -> None:
        """Set the measured costs of passes."""
        self.row_costs = costs

    @property
    def variants(self) -> tuple[EngineOptions, ...]:
        """The options that calibration tries, cheapest first: paddings of a chain's rows."""
        return tuple(replace(self.options, row_multiple=rows) for rows in (1, 2, 4, 8, 16))

    @property
    def costed_rows(self) -> tuple[int, ...]:
        """Numbers of rows to measure."""
        return COSTED_ROWS

    @property
    def awaits_decoders(self) -> bool:
        """Whether faster decoders will soon replace the present ones."""
        return False

    @property
    def examination_s(self) -> float:
        """Unlimited, because the calibration of a processor is kept."""
        return math.inf

    @property
    def row_costs_ms(self) -> dict[int, float]:
        return self.row_costs.pass_ms

    def threads(self, *, alone: bool) -> int:
        """Threads of a pass; 0: the process's default."""
        return (alone and self.options.threads_alone) or self.options.threads

    @property
    def alone_share(self) -> float:
        return self.row_costs.alone_share

    @property
    def vocabulary(self) -> int:
        return self.architecture.vocabulary

    @property
    def ranked_ids(self) -> NDArray[np.int64]:
        return np.arange(self.vocabulary)

    @property
    def context(self) -> int:
        return self.options.context

    @property
    def most_rows(self) -> int:
        return MAX_PASS_ROWS

    def open_session(self, text: Text = (), salt: bytes = b"") -> int:
        blocks = self._kept.cache.find(text, salt)
        session = self._layout.open(len(blocks) * BLOCK)
        self._kept.load(blocks, session)
        return session

    def remember(self, session: int, text: Text, salt: bytes = b"") -> None:
        self._kept.save(text[: self._layout.length(session)], salt, session)

    @property
    def runs_ahead(self) -> bool:
        return False

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        raise NotImplementedError

    def forward_chain(
        self, rows: SequenceTokens, rankings: Sequence[Ranking], entry: int
    ) -> list[Logits]:
        return forward_one_by_one(self, rows, rankings, entry)

    def close_session(self, session: int) -> None:
        self._layout.close(session)

    def length(self, session: int) -> int:
        return self._layout.length(session)

    def commit_kv(
        self, session: int, confirmed: Sequence[int], surviving: Sequence[int] = ()
    ) -> None:
        self._layout.commit_kv(session, confirmed, surviving)


_Key = tuple[bytes | int, bytes]
"""Key of a block: the serial number of the block before it (for the first block the text's salt)
and its token ids. Keys are compared in full, so a collision of hashes cannot return a block of
another text."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """serial: never used again; number: of the place that holds the block."""

    serial: int
    number: int


class PrefixCache:
    """Numbers for the blocks of texts, 0 to `blocks` - 1; the least recently used number is reused.

    A block counts as more recently used than the blocks behind it. So those are dropped first, and
    every kept block can be found.
    """

    def __init__(self, blocks: int) -> None:
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._free = list(range(blocks))[::-1]
        self._blocks = blocks
        self._serials = count()

    def find(self, text: Text, salt: bytes) -> list[int]:
        """Numbers of the kept blocks at the beginning of the text, in order; marks them as used."""
        keys = self._keys(text, salt)
        self._use(keys)
        return [self._kept[key].number for key in keys]

    def add(self, text: Text, salt: bytes) -> list[tuple[int, int]]:
        """Keep the whole blocks of a text, within the numbers that there are.

        Returns place in the text (in blocks) and number of each new block; the owner of the KV must
        fill it.
        """
        keys = self._keys(text, salt)
        self._use(keys)  # so that no new block replaces one of them
        added = []
        before = self._kept[keys[-1]].serial if keys else salt
        for place, tokens in enumerate(_blocks(text)[: self._blocks]):
            if place < len(keys):
                continue
            key, kept = (before, tokens), _Kept(next(self._serials), self._number())
            self._kept[key] = kept
            keys.append(key)
            added.append((place, kept.number))
            before = kept.serial
        self._use(keys)
        return added

    def _keys(self, text: Text, salt: bytes) -> list[_Key]:
        """Keys of the kept blocks at the beginning of the text."""
        found: list[_Key] = []
        before: bytes | int = salt
        for tokens in _blocks(text):
            kept = self._kept.get((before, tokens))
            if kept is None:
                break
            found.append((before, tokens))
            before = kept.serial
        return found

    def _use(self, keys: Sequence[_Key]) -> None:
        for key in reversed(keys):
            self._kept.move_to_end(key)

    def _number(self) -> int:
        """A free number, or the number of the least recently used block."""
        return self._free.pop() if self._free else self._kept.popitem(last=False)[1].number


def _blocks(text: Text) -> list[bytes]:
    """The token ids of each whole block."""
    whole = np.asarray(text, np.int64)[: len(text) // BLOCK * BLOCK]
    return [block.tobytes() for block in whole.reshape(-1, BLOCK)]


class KeptTexts:
    """Blocks of texts in spare lanes of a KV cache.

    Blocks are copied into and out of the spare lanes, so no session depends on them. Paged buffers
    share whole pages instead. With the chat pair a copy takes a fiftieth of the time of a prefill.

    cache       the numbers of kept blocks
    first_lane  first spare lane
    places      places of a lane, a multiple of `BLOCK`
    tokens      most tokens kept
    """

    def __init__(self, kv: KeyValueBuffers, first_lane: int, places: int, tokens: int) -> None:
        self._kv = kv
        self._first_lane = first_lane
        self._places = places
        self.cache = PrefixCache(tokens // BLOCK)

    def load(self, blocks: Sequence[int], lane: int) -> None:
        """Copy blocks to the beginning of a lane."""
        for place, block in enumerate(blocks):
            spare, start = self._home(block)
            self._kv.copy(spare, start, start + BLOCK, lane, place * BLOCK)

    def save(self, text: Text, salt: bytes, lane: int) -> None:
        """Keep the whole blocks of a text at the beginning of a lane."""
        for place, block in self.cache.add(text, salt):
            spare, start = self._home(block)
            self._kv.copy(lane, place * BLOCK, (place + 1) * BLOCK, spare, start)

    def _home(self, block: int) -> tuple[int, int]:
        """Lane and place of a kept block."""
        lane, start = divmod(block * BLOCK, self._places)
        return self._first_lane + lane, start

"""Keeps the KV of texts for later texts with the same beginning: which blocks, and where."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from card.engines.interface import Text
from card.engines.layout import KeyValueBuffers

BLOCK = 32
"""Tokens of a block."""

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

    first_lane  first spare lane
    places      places of a lane, a multiple of `BLOCK`
    tokens      most tokens kept
    """

    def __init__(self, kv: KeyValueBuffers, first_lane: int, places: int, tokens: int) -> None:
        self._kv = kv
        self._first_lane = first_lane
        self._places = places
        self._cache = PrefixCache(tokens // BLOCK)

    def find(self, text: Text, salt: bytes) -> list[int]:
        """The kept blocks at the beginning of the text, from texts with the same salt."""
        return self._cache.find(text, salt)

    def load(self, blocks: Sequence[int], lane: int) -> None:
        """Copy blocks to the beginning of a lane."""
        for place, block in enumerate(blocks):
            spare, start = self._home(block)
            self._kv.copy(spare, start, start + BLOCK, lane, place * BLOCK)

    def save(self, text: Text, salt: bytes, lane: int) -> None:
        """Keep the whole blocks of a text at the beginning of a lane."""
        for place, block in self._cache.add(text, salt):
            spare, start = self._home(block)
            self._kv.copy(lane, place * BLOCK, (place + 1) * BLOCK, spare, start)

    def _home(self, block: int) -> tuple[int, int]:
        """Lane and place of a kept block."""
        lane, start = divmod(block * BLOCK, self._places)
        return self._first_lane + lane, start

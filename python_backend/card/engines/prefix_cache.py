"""Which blocks of texts are kept, and which of them is given up first. Pure: it holds no KV."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from card.engines.interface import Text

BLOCK = 32
"""Tokens of a block."""

_Key = tuple[bytes | int, bytes]
"""What comes before a block (the serial number of the block there; of the first one, its text's
salt) and its own token ids. Keys are compared in full, so no collision of hashes finds a block of
another text."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """serial: never used again; number: of the place that holds the block."""

    serial: int
    number: int


class PrefixCache:
    """Numbers for the blocks of texts, 0 to `blocks` - 1; the least recently used are taken anew.

    A block is more recently used than those that follow it, so it is given up after them, and what
    is kept can always be found.
    """

    def __init__(self, blocks: int) -> None:
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._free = list(range(blocks))[::-1]
        self._blocks = blocks
        self._serials = count()

    def find(self, text: Text, salt: bytes) -> list[int]:
        """Numbers of the kept blocks that the text begins with, in order. They count as used."""
        keys = self._keys(text, salt)
        self._use(keys)
        return [self._kept[key].number for key in keys]

    def add(self, text: Text, salt: bytes) -> list[tuple[int, int]]:
        """Keep the whole blocks of a text, as many as there are numbers for.

        Returns place in the text (in blocks) and number of each block that was not kept before:
        the owner of the KV has to fill it.
        """
        keys = self._keys(text, salt)
        self._use(keys)  # so that none of them is given up for another
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
        """Of the kept blocks that the text begins with."""
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
        """One that is free, or that of the least recently used block."""
        return self._free.pop() if self._free else self._kept.popitem(last=False)[1].number


def _blocks(text: Text) -> list[bytes]:
    """The token ids of each whole block."""
    whole = np.asarray(text, np.int64)[: len(text) // BLOCK * BLOCK]
    return [block.tobytes() for block in whole.reshape(-1, BLOCK)]

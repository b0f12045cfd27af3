"""Keeps the KV of texts for later texts with the same beginning."""

from __future__ import annotations

from collections.abc import Sequence

from card.engines.interface import Text
from card.engines.layout import KeyValueBuffers
from card.engines.prefix_cache import BLOCK, PrefixCache


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

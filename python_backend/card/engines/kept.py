"""The KV of texts that were read, kept for texts that begin alike."""

from __future__ import annotations

from collections.abc import Sequence

from card.engines.interface import Text
from card.engines.layout import KeyValueBuffers
from card.engines.prefix_cache import BLOCK, PrefixCache


class KeptTexts:
    """Blocks of texts in spare lanes of a KV cache.

    They are copied there and back, so no session depends on them afterwards; paged buffers share
    whole pages instead. With the chat pair a copy takes a fiftieth of the time of reading them.

    first_lane  of the spare ones
    places      of a lane, a multiple of `BLOCK`
    tokens      that are kept at most
    """

    def __init__(self, kv: KeyValueBuffers, first_lane: int, places: int, tokens: int) -> None:
        self._kv = kv
        self._first_lane = first_lane
        self._places = places
        self._cache = PrefixCache(tokens // BLOCK)

    def find(self, text: Text, salt: bytes) -> list[int]:
        """The kept blocks that the text begins with, of texts with the same salt."""
        return self._cache.find(text, salt)

    def load(self, blocks: Sequence[int], lane: int) -> None:
        """Copy blocks to the beginning of a lane."""
        for place, block in enumerate(blocks):
            spare, start = self._home(block)
            self._kv.copy(spare, start, start + BLOCK, lane, place * BLOCK)

    def save(self, text: Text, salt: bytes, lane: int) -> None:
        """Keep the whole blocks of a text that stands at the beginning of a lane."""
        for place, block in self._cache.add(text, salt):
            spare, start = self._home(block)
            self._kv.copy(lane, place * BLOCK, (place + 1) * BLOCK, spare, start)

    def _home(self, block: int) -> tuple[int, int]:
        """Lane and place where a block is kept."""
        lane, start = divmod(block * BLOCK, self._places)
        return self._first_lane + lane, start

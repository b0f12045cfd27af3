"""Static key/value buffers: one lane is one contiguous sequence of every layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.architecture import Architecture
from card.engines.layout import Destination, Stretch


def storable(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """What is to be stored of keys and values of one shape: themselves, if the values are finite
    (a key's minus zero becomes zero, which no sum tells apart).

    A hidden place weighs zero, and zero times infinity is not a number: candidates that overflow
    would spoil the rows before them, and later those that were never to see them. So where a value
    is not finite, zero is stored and its key is no number. Whoever sees the place still gets no
    number, and nobody's error is lost, not even that of a prompt whose logits are not asked for.
    """
    # `isfinite` and `where` take three times as long.
    return keys + (values - values), torch.nan_to_num(values, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class FlatDestination:
    """Rows that go anywhere, as flat positions.

    keys    [writes * kv_heads * head_size]
    values  [writes * kv_heads]
    source  [writes], the pass's row of each; None: every row in order
    """

    keys: Tensor
    values: Tensor
    source: Tensor | None


class KeyValueCache:
    """Keys and values of every layer, zero at first.

    keys    per layer [lanes * kv_heads, head_size, places]: transposed, as the score product reads
            them, which spares it a reordering of the whole context in every pass
    values  per layer [lanes * kv_heads, places, head_size]

    A place that nobody confirmed may hold any keys, and any values that are finite (`storable`):
    masks keep it out.
    """

    def __init__(
        self, architecture: Architecture, lanes: int, places: int, dtype: torch.dtype
    ) -> None:
        a = architecture
        self.lanes = lanes
        self.places = places
        self.dtype = dtype
        self._heads, self._size = a.kv_heads, a.head_size
        self._keys = torch.zeros(a.layers, lanes, a.kv_heads, a.head_size, places, dtype=dtype)
        self._values = torch.zeros(a.layers, lanes, a.kv_heads, places, a.head_size, dtype=dtype)
        self.keys = list(self._keys.view(a.layers, lanes * a.kv_heads, a.head_size, places))
        self.values = list(self._values.view(a.layers, lanes * a.kv_heads, places, a.head_size))
        self._flat_keys = list(self._keys.view(a.layers, -1))
        self._flat_values = list(self._values.view(a.layers, -1, a.head_size))
        self._value_plane = np.arange(a.kv_heads, dtype=np.int64) * places
        self._key_plane = np.arange(a.kv_heads * a.head_size, dtype=np.int64) * places

    def flattened(self, destination: Destination) -> Stretch | FlatDestination:
        """Where rows are stored, computed once per pass and used by every layer."""
        if isinstance(destination, Stretch):
            return destination
        lane, place, source = destination.lane, destination.place, destination.source
        keys = (lane * self._key_plane.size * self.places + place)[:, None] + self._key_plane
        values = (lane * self._heads * self.places + place)[:, None] + self._value_plane
        return FlatDestination(
            torch.from_numpy(keys.reshape(-1)),
            torch.from_numpy(values.reshape(-1)),
            None if source is None else torch.from_numpy(source.copy()),
        )

    def write(
        self, layer: int, destination: Stretch | FlatDestination, keys: Tensor, values: Tensor
    ) -> None:
        """Store keys and values [rows, kv_heads, head_size] of a layer."""
        keys, values = storable(keys, values)
        if isinstance(destination, Stretch):
            first = destination.lane * self._heads
            heads = slice(first, first + self._heads)
            places = slice(destination.place, destination.place + len(keys))
            self.keys[layer][heads, :, places] = keys.permute(1, 2, 0)
            self.values[layer][heads, places] = values.transpose(0, 1)
            return
        if destination.source is not None:
            keys = keys.index_select(0, destination.source)
            values = values.index_select(0, destination.source)
        self._flat_keys[layer].index_copy_(0, destination.keys, keys.reshape(-1))
        self._flat_values[layer].index_copy_(0, destination.values, values.reshape(-1, self._size))

    @torch.inference_mode()
    def copy(self, source: int, start: int, stop: int, lanes: range, to: int) -> None:
        """Copy places [start, stop) of lane `source` to `lanes`, from place `to` on."""
        into, places = slice(lanes.start, lanes.stop), slice(to, to + stop - start)
        keys = self._keys[:, source : source + 1, :, :, start:stop].clone()
        values = self._values[:, source : source + 1, :, start:stop].clone()
        self._keys[:, into, :, :, places] = keys
        self._values[:, into, :, places] = values

    def gather(self, lane: int, start: int, sources: NDArray[np.int64]) -> None:
        """Move the entries at `start + sources` of a lane to `start`, `start + 1`, ..."""
        moved = torch.from_numpy(sources)
        keys = self._keys[:, lane, :, :, start:]
        values = self._values[:, lane, :, start:]
        keys[..., : len(sources)] = keys.index_select(3, moved)
        values[:, :, : len(sources)] = values.index_select(2, moved)

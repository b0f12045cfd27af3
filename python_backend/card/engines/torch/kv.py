"""Static key/value buffers: one lane is one contiguous sequence of every layer."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.torch.architecture import Architecture

_KEYS, _VALUES = 0, 1


class KeyValueCache:
    """Keys and values [layers, 2, lanes, kv_heads, places, head_size], zero at first.

    A place that nobody confirmed may hold anything finite: masks keep it out.
    """

    def __init__(
        self, architecture: Architecture, lanes: int, places: int, dtype: torch.dtype
    ) -> None:
        a = architecture
        self.lanes = lanes
        self.places = places
        self.dtype = dtype
        self._heads = a.kv_heads
        self._all = torch.zeros(a.layers, 2, lanes, a.kv_heads, places, a.head_size, dtype=dtype)
        merged = (lanes * a.kv_heads, places, a.head_size)
        self.keys = [layer[_KEYS].view(merged) for layer in self._all]
        """Per layer [lanes * kv_heads, places, head_size]."""
        self.values = [layer[_VALUES].view(merged) for layer in self._all]
        self.flat = [layer.view(-1, a.head_size) for layer in self._all]
        """Per layer [2 * lanes * kv_heads * places, head_size], what `write_index` points into."""
        plane = np.arange(2 * a.kv_heads, dtype=np.int64)
        kind, head = plane // a.kv_heads, plane % a.kv_heads
        self._plane = (kind * lanes * a.kv_heads + head) * places

    @property
    def bytes_per_lane(self) -> int:
        return self._all[:, :, 0].numel() * self._all.element_size()

    def write_index(self, lane: NDArray[np.int64], place: NDArray[np.int64]) -> Tensor:
        """Where the keys and values of rows go: [rows * 2 * kv_heads] into `flat`."""
        start = lane * (self._heads * self.places) + place
        return torch.from_numpy((start[:, None] + self._plane[None]).reshape(-1))

    def replicate(self, source: int, lanes: range, start: int, stop: int) -> None:
        """Copy places [start, stop) of lane `source` to `lanes`."""
        self._all[:, :, lanes.start : lanes.stop, :, start:stop] = self._all[
            :, :, source : source + 1, :, start:stop
        ].clone()

    def gather(self, lane: int, start: int, sources: Tensor) -> None:
        """Move the entries at `start + sources` of a lane to `start`, `start + 1`, ..."""
        region = self._all[:, :, lane, :, start:]
        region[:, :, :, : len(sources)] = region.index_select(3, sources)

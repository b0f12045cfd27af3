"""Keys and values of every layer on a device, as passes of fixed shape read and write them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.architecture import Architecture
from card.engines.interface import EngineError
from card.engines.layout import EXTENT_MULTIPLE


class DeviceBuffers(ABC):
    """Keys and values [layers, ...] of every lane on a device, zero at first.

    Memory is taken at the first use, so that an engine that is only a template takes none.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self._shape = shape
        self._dtype = dtype

    @cached_property
    def keys(self) -> Tensor:
        return self._allocated()

    @cached_property
    def values(self) -> Tensor:
        return self._allocated()

    def _allocated(self) -> Tensor:
        try:
            return torch.zeros(self._shape, dtype=self._dtype, device=self.device)
        except torch.OutOfMemoryError as error:
            raise EngineError(
                f"the KV cache does not fit on {self.device}, where less is free than when the "
                "model was loaded; give the device to fewer processes, or lower cache.slots or "
                "limits.context_tokens"
            ) from error

    def allocate(self) -> None:
        """Take the memory now, if it is not taken yet. Raises `EngineError` if it is not there."""
        _ = self.keys, self.values

    @abstractmethod
    def copy(self, source: int, start: int, stop: int, lanes: range, to: int) -> None: ...


class DeviceKeyValueCache(DeviceBuffers):
    """Keys and values [layers, lanes, kv_heads, stride, head_size].

    A lane has `places` positions and, behind them, places where padded rows write: nobody reads
    those. A place that nobody confirmed may hold any keys, and any values that are finite
    (`torch.kv.storable`): masks keep it out.

    lanes, spare  lanes that passes are about, and how many there are behind them
    """

    def __init__(
        self,
        architecture: Architecture,
        lanes: int,
        places: int,
        dtype: torch.dtype,
        device: torch.device,
        spare: int = 0,
    ) -> None:
        a = architecture
        self.lanes = lanes
        self.places = places
        self.stride = places + EXTENT_MULTIPLE
        self._heads = a.kv_heads
        shape = (a.layers, lanes + spare, a.kv_heads, self.stride, a.head_size)
        super().__init__(shape, dtype, device)

    def first_places(self, lane: NDArray[np.int64], place: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where head 0 of each entry stands in a flat layer; head h stands h * stride further."""
        found: NDArray[np.int64] = lane * (self._heads * self.stride) + place
        return found

    @property
    def refuse(self) -> int:
        """The first place that nobody reads, in a flat layer."""
        return self.places

    @torch.inference_mode()
    def copy(self, source: int, start: int, stop: int, lanes: range, to: int) -> None:
        """Copy places [start, stop) of lane `source` to `lanes`, from place `to` on."""
        into, places = slice(lanes.start, lanes.stop), slice(to, to + stop - start)
        for buffers in (self.keys, self.values):
            buffers[:, into, :, places] = buffers[:, source : source + 1, :, start:stop].clone()

    def gather(self, lane: int, start: int, sources: NDArray[np.int64]) -> None:
        """Move the entries at `start + sources` of a lane to `start`, `start + 1`, ..."""
        moved = torch.from_numpy(start + sources).to(self.device, non_blocking=True)
        for buffers in (self.keys, self.values):
            of_lane = buffers[:, lane]
            of_lane[:, :, start : start + len(sources)] = of_lane.index_select(2, moved)

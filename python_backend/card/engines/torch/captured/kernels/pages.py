"""Keys and values of every layer in pages, and the table that says where a session's lie."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.architecture import Architecture
from card.engines.interface import EngineError

PAGE = 64
"""Places of a page. Attention takes them as one block, so pages begin at multiples of it."""


class PagedKeyValueCache:
    """Keys and values [layers, pages, kv_heads, PAGE, head_size], zero at first.

    Memory is taken at the first use, so that an engine that is only a template takes none.

    table   [lanes, pages of a lane] int32: the page of each 64 places of a lane
    refuse  the slot of rows that pad a pass: page * PAGE + place, in a page of no lane
    """

    def __init__(
        self,
        architecture: Architecture,
        lanes: int,
        places: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        a = architecture
        of_lane = -(-places // PAGE)
        pages = lanes * of_lane
        self.device = device
        self.refuse = pages * PAGE
        self._table = np.arange(pages, dtype=np.int32).reshape(lanes, of_lane)
        self._shape = (a.layers, pages + 1, a.kv_heads, PAGE, a.head_size)
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

    @cached_property
    def table(self) -> Tensor:
        return torch.from_numpy(self._table).to(self.device)

    def allocate(self) -> None:
        """Take the memory now, if it is not taken yet. Raises `EngineError` if it is not there."""
        _ = self.keys, self.values, self.table

    def slots(self, lane: int, place: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where places of a lane lie: page * PAGE + place within the page."""
        found: NDArray[np.int64] = self._table[lane, place // PAGE].astype(np.int64) * PAGE
        return found + place % PAGE

    def gather(self, lane: int, start: int, sources: NDArray[np.int64]) -> None:
        """Move the entries at `start + sources` of a lane to `start`, `start + 1`, ..."""
        self._move(lane, start + sources, lane, start + np.arange(len(sources)))

    @torch.inference_mode()
    def copy(self, source: int, start: int, stop: int, lane: int, to: int) -> None:
        """Copy places [start, stop) of lane `source` to `lane`, from place `to` on."""
        places = np.arange(start, stop)
        self._move(source, places, lane, places - start + to)

    def _move(
        self, source: int, places: NDArray[np.int64], lane: int, to: NDArray[np.int64]
    ) -> None:
        """Copy the entries at `places` of lane `source` to the places `to` of another, or of it."""
        read, written = (
            torch.from_numpy(np.stack(np.divmod(self.slots(of_lane, at), PAGE))).to(self.device)
            for of_lane, at in ((source, places), (lane, to))
        )
        for buffers in (self.keys, self.values):
            # Read before it is written: the two may overlap.
            buffers[:, written[0], :, written[1]] = buffers[:, read[0], :, read[1]]

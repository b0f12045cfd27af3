"""Keys and values of every layer in pages, and the table that says where a session's lie."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.architecture import Architecture
from card.engines.torch.captured.kv import DeviceBuffers

PAGE = 64
"""Places of a page. Attention takes them as one block, so pages begin at multiples of it."""


class PagedKeyValueCache(DeviceBuffers):
    """Keys and values [layers, pages, kv_heads, PAGE, head_size].

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
        self.lanes = lanes
        self.places = places
        self._of_lane = -(-places // PAGE)
        pages = lanes * self._of_lane
        self.refuse = pages * PAGE
        self._table = np.arange(pages, dtype=np.int32).reshape(lanes, self._of_lane)
        super().__init__((a.layers, pages + 1, a.kv_heads, PAGE, a.head_size), dtype, device)

    @cached_property
    def table(self) -> Tensor:
        return torch.from_numpy(self._table).to(self.device)

    def allocate(self) -> None:
        super().allocate()
        _ = self.table

    def slots(self, lane: NDArray[np.int64], place: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where places of lanes lie: page * PAGE + place within the page."""
        found: NDArray[np.int64] = self._table[lane, place // PAGE].astype(np.int64) * PAGE
        return found + place % PAGE

    def gather(self, lane: int, start: int, sources: NDArray[np.int64]) -> None:
        """Move the entries at `start + sources` of a lane to `start`, `start + 1`, ..."""
        self._move(lane, start + sources, lane, start + np.arange(len(sources)))

    @torch.inference_mode()
    def copy(self, source: int, start: int, stop: int, lanes: range, to: int) -> None:
        """Copy places [start, stop) of lane `source` to `lanes`, from place `to` on."""
        places = np.arange(start, stop)
        for lane in lanes:
            self._move(source, places, lane, places - start + to)

    def _move(
        self, source: int, places: NDArray[np.int64], lane: int, to: NDArray[np.int64]
    ) -> None:
        """Copy the entries at `places` of lane `source` to the places `to` of another, or of it."""
        read, written = (
            torch.from_numpy(np.stack(np.divmod(self.slots(of_lane, at), PAGE))).to(self.device)
            for of_lane, at in (
                (np.full(len(places), source), places),
                (np.full(len(to), lane), to),
            )
        )
        for buffers in (self.keys, self.values):
            # Read before it is written: the two may overlap.
            buffers[:, written[0], :, written[1]] = buffers[:, read[0], :, read[1]]

"""Passes over paths: rows of sessions become tiles of attention, in arrays of a fixed shape."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.layout import PathLayout, PathPass, path_tiles
from card.engines.options import EngineOptions
from card.engines.sessions import kept_lanes, lane_places, most_pending
from card.engines.torch.captured.kernels.attention import rows_per_tile
from card.engines.torch.captured.kernels.decoder import KernelDecoder
from card.engines.torch.captured.kernels.pages import PagedKeyValueCache
from card.engines.torch.captured.kernels.shapes import (
    PathBuffer,
    PathShape,
    padded_rows,
    padded_width,
)


class PathPasses:
    """Passes of few fixed shapes over buffers that stay, by kernels."""

    def __init__(self, decoder: KernelDecoder, options: EngineOptions) -> None:
        a = decoder.architecture
        lanes = options.sessions + kept_lanes(options)
        self.kv = PagedKeyValueCache(a, lanes, lane_places(options), decoder.dtype, decoder.device)
        self.layout = PathLayout(self.kv, options.sessions, most_pending(options))
        self._decoder = decoder
        self._tile = rows_per_tile(a.heads, a.kv_heads)

    def shape_of(self, this: PathPass) -> PathShape:
        """The shape that the pass is padded to."""
        rows = padded_rows(len(this.tokens))
        of_chain = -(-rows // self._tile)
        tiles = len(path_tiles(this.sessions, self._tile))
        wanted = len(this.logit_rows)
        return PathShape(
            rows=rows,
            tiles=of_chain if tiles <= of_chain else rows,
            tile=self._tile,
            width=padded_width(max(session.places.shape[1] for session in this.sessions)),
            logits=padded_rows(wanted) if wanted else 0,
        )

    def arrays(self, shape: PathShape, device: torch.device, *, pinned: bool) -> PathBuffer:
        """Arrays of this shape, to be filled on the host or copied to a device."""
        return PathBuffer.empty(shape, device, pinned=pinned)

    def forward(self, arrays: PathBuffer, logits: Tensor | None, tapped: Tensor | None) -> None:
        """As of `KernelDecoder`."""
        self._decoder.forward(arrays, self.kv, logits, tapped)

    def fill(self, arrays: PathBuffer, this: PathPass) -> None:
        """Write a pass and its padding into arrays on the host."""
        numbers = arrays.numbers

        def put(name: str, values: NDArray[np.int64], padding: int = 0) -> None:
            array = numbers[name]
            array[: len(values)] = values
            array[len(values) :] = padding

        put("tokens", this.tokens)
        put("positions", this.positions)
        slots = [self.kv.slots(one.lane, one.stored_places) for one in this.sessions]
        put("slots", np.concatenate(slots), self.kv.refuse)
        put("logit_rows", this.logit_rows)
        tiles, lanes, starts, places = (
            numbers[name] for name in ("tiles", "lanes", "starts", "paths")
        )
        tiles.fill(-1)
        for number, tile in enumerate(path_tiles(this.sessions, self._tile)):
            tiles[number, : len(tile.rows)] = np.array(tile.rows) + tile.base
            lanes[number] = tile.session.lane
            starts[number] = tile.session.start
            path = tile.path
            places[number, : len(path)] = path

"""Passes over paths: rows of sessions become tiles of attention, in arrays of a fixed shape.

A shape depends neither on the sessions' lengths nor on their number, which the kernels find in the
arrays. So few shapes suffice. The arrays are packed into one, so one copy to the device transfers a
pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.architecture import Architecture
from card.engines.options import EngineOptions
from card.engines.sessions import kept_lanes, lane_places, most_pending, rounded_up
from card.engines.torch.captured.kernels.attention import rows_per_tile
from card.engines.torch.captured.kernels.pages import PagedKeyValueCache
from card.engines.torch.captured.kernels.products import MOST_ROWS, ROW_TILE
from card.engines.torch.paths import PathLayout, PathPass, path_tiles

_NARROW = 16
"""Places of a path that the narrowest shape has room for; wider ones have 4 times as many."""


def padded_rows(count: int) -> int:
    """Rows that a pass of so many is padded to: 16, 32 or a multiple of 64."""
    if count > MOST_ROWS // 2:
        return rounded_up(count, MOST_ROWS)
    return ROW_TILE if count <= ROW_TILE else MOST_ROWS // 2


def padded_width(places: int) -> int:
    """Places that a path of so many is padded to."""
    width = _NARROW
    while width < places:
        width *= 4
    return width


@dataclass(frozen=True, slots=True)
class PathShape:
    """The sizes that a captured pass is made for.

    rows    rows of a pass: 16, 32, 64, or a multiple of 64
    tiles   tiles of attention: the tiles of one chain of these rows, or one tile for each row
    tile    rows of a tile
    width   places of a path behind the prefix
    logits  rows with computed logits, of the same sizes as `rows`; 0: none
    """

    rows: int
    tiles: int
    tile: int
    width: int
    logits: int


@dataclass(frozen=True)
class PathBuffer:
    """Every array of a pass, int32, in one stretch on the host or on a device.

    tokens, positions  [rows]
    slots              [rows], where each row's keys and values are stored
    logit_rows         [logits]
    tiles              [tiles, tile], rows along one path, -1 behind the last
    lanes, starts      [tiles]
    paths              [tiles, width]
    """

    shape: PathShape
    bytes: Tensor

    @classmethod
    def empty(cls, shape: PathShape, device: torch.device, *, pinned: bool = False) -> PathBuffer:
        count = sum(math.prod(sizes) for sizes in _sizes(shape).values())
        return cls(shape, torch.zeros(count, dtype=torch.int32, device=device, pin_memory=pinned))

    @cached_property
    def _arrays(self) -> dict[str, Tensor]:
        found = {}
        at = 0
        for name, sizes in _sizes(self.shape).items():
            stop = at + math.prod(sizes)
            found[name] = self.bytes[at:stop].view(sizes)
            at = stop
        return found

    def __getitem__(self, name: str) -> Tensor:
        return self._arrays[name]

    @property
    def tokens(self) -> Tensor:
        return self._arrays["tokens"]

    @cached_property
    def numbers(self) -> dict[str, NDArray[np.int32]]:
        """The same arrays for NumPy, if they are on the host."""
        return {name: array.numpy() for name, array in self._arrays.items()}


def _sizes(shape: PathShape) -> dict[str, tuple[int, ...]]:
    return {
        "tokens": (shape.rows,),
        "positions": (shape.rows,),
        "slots": (shape.rows,),
        "logit_rows": (shape.logits,),
        "tiles": (shape.tiles, shape.tile),
        "lanes": (shape.tiles,),
        "starts": (shape.tiles,),
        "paths": (shape.tiles, shape.width),
    }


class PathPasses:
    """Keys, values and layout of passes of few fixed shapes, and their arrays."""

    def __init__(
        self,
        architecture: Architecture,
        dtype: torch.dtype,
        device: torch.device,
        options: EngineOptions,
    ) -> None:
        lanes = options.sessions + kept_lanes(options)
        self.kv = PagedKeyValueCache(architecture, lanes, lane_places(options), dtype, device)
        self.layout = PathLayout(self.kv, options.sessions, most_pending(options))
        self._tile = rows_per_tile(architecture.heads, architecture.kv_heads)

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

"""The fixed shape to which a pass is padded, and its arrays packed into one.

A shape depends neither on the sessions' lengths nor on their number, which the kernels find in the
arrays. So few shapes suffice, and one copy to the device transfers a pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.layout import rounded_up
from card.engines.torch.captured.kernels.products import MOST_ROWS, ROW_TILE

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

"""Which fixed shape a pass is padded to, and its arrays packed into one.

A pass of any kind becomes one of few shapes, so that a graph captured for a shape serves every
pass of it, and everything that changes crosses to the device in one copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.layout import EXTENT_MULTIPLE, AttentionGroup, Pass, Stretch, rounded_up
from card.engines.torch.captured.kv import DeviceKeyValueCache
from card.engines.torch.linear import ROW_TILE

_SMALLEST_TILE = 8
_INTEGER_BYTES = 8


@dataclass(frozen=True, slots=True)
class PassShape:
    """The sizes that a captured pass is made for.

    rows      of the linear layers, a multiple of `ROW_TILE`
    lanes     attended together, from lane 0: a power of two, or all
    attended  rows per lane
    extent    places looked at: 128 times a power of two, or all
    writes    entries that are stored, for a row may go to several lanes
    logits    rows whose logits are computed; 0: none
    """

    rows: int
    lanes: int
    attended: int
    extent: int
    writes: int
    logits: int


@dataclass(frozen=True)
class PassBuffer:
    """Every array of a pass in one stretch of bytes, on the host or on a device.

    tokens, positions  [rows] int64
    places             [writes] int64, where head 0 of an entry stands in a flat layer
    sources            [writes] int64, the row of each entry
    gather             [lanes * attended] int64, the row at each (lane, attended row)
    scatter            [rows] int64, each row's place in what attention gives
    logit_rows         [logits] int64
    visible            [lanes, attended, extent] bool
    """

    shape: PassShape
    bytes: Tensor

    @classmethod
    def empty(cls, shape: PassShape, device: torch.device, *, pinned: bool = False) -> PassBuffer:
        size = _INTEGER_BYTES * sum(_integers(shape).values()) + _mask_bytes(shape)
        return cls(shape, torch.zeros(size, dtype=torch.uint8, device=device, pin_memory=pinned))

    @cached_property
    def _arrays(self) -> dict[str, Tensor]:
        found = {}
        at = 0
        for name, count in _integers(self.shape).items():
            stop = at + _INTEGER_BYTES * count
            found[name] = self.bytes[at:stop].view(torch.int64)
            at = stop
        return found

    def integers(self, name: str) -> Tensor:
        return self._arrays[name]

    @property
    def tokens(self) -> Tensor:
        return self._arrays["tokens"]

    @cached_property
    def visible(self) -> Tensor:
        shape = self.shape
        mask = self.bytes[_INTEGER_BYTES * sum(_integers(shape).values()) :]
        return mask.view(torch.bool).view(shape.lanes, shape.attended, shape.extent)


def _integers(shape: PassShape) -> dict[str, int]:
    return {
        "tokens": shape.rows,
        "positions": shape.rows,
        "places": shape.writes,
        "sources": shape.writes,
        "gather": shape.lanes * shape.attended,
        "scatter": shape.rows,
        "logit_rows": shape.logits,
    }


def _mask_bytes(shape: PassShape) -> int:
    return shape.lanes * shape.attended * shape.extent


def shape_of(this: Pass, kv: DeviceKeyValueCache, row_multiple: int) -> PassShape:
    """The shape that the pass is padded to. Its rows must stand in one attention group."""
    (group,) = this.groups
    rows = rounded_up(len(this.tokens), ROW_TILE)
    destination = this.destination
    writes = len(this.tokens) if isinstance(destination, Stretch) else len(destination.lane)
    wanted = len(this.tokens) if this.logit_rows is None else len(this.logit_rows)
    tile = max(row_multiple, _SMALLEST_TILE)
    return PassShape(
        rows=rows,
        lanes=min(_power_of_two(group.lanes.stop, 1), kv.lanes),
        attended=_power_of_two(group.rows, tile),
        extent=min(_power_of_two(group.extent, EXTENT_MULTIPLE), kv.places),
        writes=rounded_up(writes, ROW_TILE),
        logits=rounded_up(wanted, ROW_TILE),
    )


def fill(buffer: PassBuffer, this: Pass, kv: DeviceKeyValueCache) -> None:
    """Write a pass and its padding into a buffer on the host."""
    (group,) = this.groups
    shape = buffer.shape
    count = len(this.tokens)

    def put(name: str, values: NDArray[np.int64], padding: int = 0) -> None:
        array = buffer.integers(name).numpy()
        array[: len(values)] = values
        array[len(values) :] = padding

    put("tokens", this.tokens)
    put("positions", this.positions)
    destination = this.destination
    if isinstance(destination, Stretch):
        place = np.arange(destination.place, destination.place + count)
        put("places", kv.first_places(np.full(count, destination.lane), place), kv.refuse)
        put("sources", np.arange(count))
    else:
        source = np.arange(count) if destination.source is None else destination.source
        put("places", kv.first_places(destination.lane, destination.place), kv.refuse)
        put("sources", source)
    every = np.arange(count)
    put("logit_rows", every if this.logit_rows is None else this.logit_rows)
    put("gather", _gathered(group, shape, every).reshape(-1))
    # Of the layout's places in what attention gives, the ones among this shape's.
    lane, row = np.divmod(every if this.scatter is None else this.scatter, group.rows)
    put("scatter", (lane + group.lanes.start) * shape.attended + row)
    visible = buffer.visible.numpy()
    # Padding sees everything, or its softmax would not be a number.
    visible.fill(True)
    seen = visible[group.lanes.start : group.lanes.stop, : group.rows]
    seen[:, :, group.mask_from : group.extent] = group.mask == 0
    seen[:, :, group.extent :] = False


def _gathered(
    group: AttentionGroup, shape: PassShape, every: NDArray[np.int64]
) -> NDArray[np.int64]:
    rows = np.zeros((shape.lanes, shape.attended), np.int64)
    found = every if group.gather is None else group.gather
    rows[group.lanes.start : group.lanes.stop, : group.rows] = found.reshape(-1, group.rows)
    return rows


def _power_of_two(value: int, unit: int) -> int:
    """The least `unit` times a power of two that is not below `value`."""
    size = unit
    while size < value:
        size *= 2
    return size

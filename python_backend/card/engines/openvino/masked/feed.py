"""A pass as the graph's inputs, padded to a shape that it has met before."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from card.engines.architecture import Architecture
from card.engines.layout import AttentionGroup, Pass, Scattered, Stretch, rounded_up
from card.engines.openvino.inputs import Inputs
from card.engines.openvino.shapes import Padding

_SHARED_ROWS = 8
"""Rows and writes of sessions that share a pass are padded to a multiple of this."""

_SHARED_WIDTH = 4
"""Rows per lane of a shared pass likewise."""


class MaskedFeed:
    """Writes passes into a graph's inputs (see `decoder`, `masked.attention` and `graph`). Padding
    repeats the last row; nobody reads what comes of it."""

    def __init__(self, architecture: Architecture, inputs: Inputs, padding: Padding) -> None:
        self._inputs = inputs
        self._group = architecture.group
        self._kv_heads = architecture.kv_heads
        self._padding = padding

    def write(self, this: Pass) -> int:
        """Every input but the KV cache and the ranking; returns how many rows the graph gives
        logits of, padding and all."""
        (attended,) = this.groups
        lanes = attended.lanes
        self._inputs.array("first", 2)[:] = lanes.start, 0
        self._inputs.array("end", 2)[:] = lanes.stop, attended.extent
        if isinstance(this.destination, Stretch):
            return self._write_one_lane(this, attended, this.destination)
        return self._write_many_lanes(this, attended, this.destination)

    def _write_one_lane(self, this: Pass, attended: AttentionGroup, at: Stretch) -> int:
        """Rows as they stand; those of the padding are rows like others, equal to the last."""
        needed = len(this.tokens)
        rows = self._padding.pad(needed)
        array = self._inputs.array
        every_row = _every_row(rows)
        array("gather", 1, rows)[0] = every_row
        for name in ("scatter", "source"):
            array(name, rows)[:] = every_row
        for name, values in (("tokens", this.tokens), ("positions", this.positions)):
            written = array(name, rows)
            written[:needed] = values
            written[needed:] = values[-1]
        place = array("place", rows, self._kv_heads, 3)
        place[:, :, 0] = at.lane - attended.lanes.start
        place[:, :, 1] = _every_row(self._kv_heads)
        place[:needed, :, 2] = every_row[:needed, None] + at.place
        place[needed:, :, 2] = at.place + needed - 1
        self._write_mask(attended, rows)
        chosen = every_row if this.logit_rows is None else this.logit_rows
        array("logit_rows", len(chosen))[:] = chosen
        return len(chosen)

    def _write_many_lanes(self, this: Pass, attended: AttentionGroup, at: Scattered) -> int:
        needed = len(this.tokens)
        rows = rounded_up(needed, _SHARED_ROWS)
        width = rounded_up(attended.rows, _SHARED_WIDTH)
        source, place = self._writes(at, attended.lanes.start, needed)
        writes = rounded_up(len(source), _SHARED_ROWS)
        chosen = _every_row(rows) if this.logit_rows is None else this.logit_rows
        put = self._inputs.put
        put("tokens", _lengthened(this.tokens, rows))
        put("positions", _lengthened(this.positions, rows))
        put("gather", self._gather(attended, needed, width))
        put("scatter", _lengthened(_moved(this.scatter, attended.rows, width, needed), rows))
        self._write_mask(attended, width)
        put("source", _lengthened(source, writes))
        put("place", _lengthened(place, writes))
        put("logit_rows", chosen)
        return len(chosen)

    def _gather(self, attended: AttentionGroup, rows: int, width: int) -> NDArray[np.int64]:
        """[lanes, width], the row at each (lane, row)."""
        gather = np.arange(rows) if attended.gather is None else attended.gather
        return _widened(gather.reshape(len(attended.lanes), -1), width)

    def _write_mask(self, attended: AttentionGroup, width: int) -> None:
        """[lanes, 1, group * width, extent], every head of a group alike."""
        lanes, rows = len(attended.lanes), attended.mask.shape[1]
        mask = self._inputs.array("mask", lanes, 1, self._group * width, attended.extent)
        mask = mask.reshape(lanes, self._group, width, attended.extent)
        seen, partly = mask[..., : attended.mask_from], mask[..., attended.mask_from :]
        seen[...] = 0.0
        partly[:, :, :rows] = attended.mask[:, None]
        partly[:, :, rows:] = attended.mask[:, None, -1:]

    def _writes(
        self, at: Scattered, first_lane: int, rows: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Row [writes] and (lane, head, place) [writes, kv_heads, 3] of every stored entry."""
        source = _every_row(rows) if at.source is None else at.source
        place = np.empty((len(source), self._kv_heads, 3), np.int64)
        place[:, :, 0] = (at.lane - first_lane)[:, None]
        place[:, :, 1] = np.arange(self._kv_heads)
        place[:, :, 2] = at.place[:, None]
        return source, place


@cache
def _every_row(rows: int) -> NDArray[np.int64]:
    return np.arange(rows)


def _lengthened(values: NDArray[Any], count: int) -> NDArray[Any]:
    """[n, ...] -> [count, ...] by repeating the last."""
    missing = count - len(values)
    return values if missing <= 0 else np.concatenate([values, values[-1:].repeat(missing, 0)])


def _widened(values: NDArray[Any], width: int) -> NDArray[Any]:
    """[lanes, n, ...] -> [lanes, width, ...] by repeating the last."""
    missing = width - values.shape[1]
    if missing <= 0:
        return values
    return np.concatenate([values, values[:, -1:].repeat(missing, 1)], axis=1)


def _moved(
    scatter: NDArray[np.int64] | None, before: int, width: int, rows: int
) -> NDArray[np.int64]:
    """Each row's place among lanes * width, where it was among lanes * before."""
    places = np.arange(rows) if scatter is None else scatter
    return places // before * width + places % before

"""A pass as the graph's inputs, padded to a shape that it has met before."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from card.engines.layout import AttentionGroup, Destination, Pass, Stretch, rounded_up
from card.engines.openvino.shapes import RowPadding

_SHARED_ROWS = 8
"""Rows and writes of sessions that share a pass are padded to a multiple of this."""

_SHARED_WIDTH = 4
"""Rows per lane of a shared pass likewise."""


class Feed:
    """Makes inputs of passes. Padding repeats the last row; nobody reads what comes of it.

    group, kv_heads  of the architecture
    """

    def __init__(self, group: int, kv_heads: int, padding: RowPadding) -> None:
        self._group = group
        self._kv_heads = kv_heads
        self._padding = padding

    def inputs(self, this: Pass) -> dict[str, NDArray[Any]]:
        """Every input but the KV cache and the ranking; see `graph`."""
        (attended,) = this.groups
        if len(attended.lanes) == 1 and attended.gather is None:
            return self._of_one_lane(this, attended)
        return self._of_many_lanes(this, attended)

    def _of_one_lane(self, this: Pass, attended: AttentionGroup) -> dict[str, NDArray[Any]]:
        """Rows as they stand; those of the padding are rows like others, equal to the last."""
        needed = len(this.tokens)
        rows = self._padding.pad(needed)
        every_row = _every_row(rows)
        _, place = self._writes(this.destination, attended.lanes.start, needed)
        chosen = this.logit_rows
        return {
            "tokens": _lengthened(this.tokens, rows),
            "positions": _lengthened(this.positions, rows),
            "gather": every_row[None],
            "scatter": every_row,
            "extent": np.array([attended.extent]),
            "mask": self._mask(attended, rows),
            "source": every_row,
            "place": _lengthened(place, rows),
            "logit_rows": every_row if chosen is None else chosen,
        }

    def _of_many_lanes(self, this: Pass, attended: AttentionGroup) -> dict[str, NDArray[Any]]:
        needed = len(this.tokens)
        rows = rounded_up(needed, _SHARED_ROWS)
        width = rounded_up(attended.rows, _SHARED_WIDTH)
        source, place = self._writes(this.destination, attended.lanes.start, needed)
        writes = rounded_up(len(source), _SHARED_ROWS)
        chosen = this.logit_rows
        return {
            "tokens": _lengthened(this.tokens, rows),
            "positions": _lengthened(this.positions, rows),
            "gather": self._gather(attended, needed, width),
            "scatter": _lengthened(_moved(this.scatter, attended.rows, width, needed), rows),
            "extent": np.array([attended.extent]),
            "mask": self._mask(attended, width),
            "source": _lengthened(source, writes),
            "place": _lengthened(place, writes),
            "logit_rows": _every_row(rows) if chosen is None else chosen,
        }

    def _gather(self, attended: AttentionGroup, rows: int, width: int) -> NDArray[np.int64]:
        """[lanes, width], the row at each (lane, row)."""
        gather = np.arange(rows) if attended.gather is None else attended.gather
        return _widened(gather.reshape(len(attended.lanes), -1), width)

    def _mask(self, attended: AttentionGroup, width: int) -> NDArray[np.float32]:
        """[lanes, 1, group * width, extent]"""
        lanes = len(attended.lanes)
        mask = np.zeros((lanes, self._group, width, attended.extent), np.float32)
        mask[..., attended.mask_from :] = _widened(attended.mask, width)[:, None]
        return mask.reshape(lanes, 1, self._group * width, attended.extent)

    def _writes(
        self, destination: Destination, first_lane: int, rows: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Row [writes] and (lane, head, place) [writes, kv_heads, 3] of every stored entry."""
        source = np.arange(rows)
        if isinstance(destination, Stretch):
            lane = np.full(rows, destination.lane)
            at = np.arange(destination.place, destination.place + rows)
        else:
            lane, at = destination.lane, destination.place
            if destination.source is not None:
                source = destination.source
        place = np.empty((len(source), self._kv_heads, 3), np.int64)
        place[:, :, 0] = (lane - first_lane)[:, None]
        place[:, :, 1] = np.arange(self._kv_heads)
        place[:, :, 2] = at[:, None]
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

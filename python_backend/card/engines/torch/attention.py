"""Attention in which a row's result depends only on that row's own keys, bit for bit.

A stock fused kernel sums in an order that follows the shapes of the pass. Here every sum runs in
the order of absolute position whatever the number of rows or of masked places behind:

- bfloat16: oneDNN's products add along the summed dimension one after another, so masked places,
  which weigh exactly zero, change nothing;
- float32: the BLAS splits long sums by size, so values are summed in fixed blocks of positions.

`calibration.check_row_invariance` proves it on the machine at hand when an engine is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from card.engines.sessions import EXTENT_MULTIPLE, rounded_up
from card.engines.torch.paths import PathTile

BLOCK = 64
"""Positions per partial sum in float32; what is visible is a multiple of it."""


@dataclass(frozen=True, slots=True)
class TileTensors:
    """Rows along one path as tensors, made once per pass and used by every layer.

    lane    of the KV cache
    rows    [rows] int64, the rows of the pass; the last one again and again as padding
    start   places before it are read as they lie
    tail    [extent - start] int64, the places from there on along the path; None: they lie in order
    extent  positions that are read
    first   positions before it are visible to every row
    hidden  [rows, 1, extent - first] bool, positions that a row does not see
    behind  [rows, 1, extent] bool, positions before a row's window, by the size of the window
    """

    lane: int
    rows: Tensor
    start: int
    tail: Tensor | None
    extent: int
    first: int
    hidden: Tensor
    behind: Mapping[int, Tensor]

    @classmethod
    def of(cls, tile: PathTile, row_multiple: int, windows: Iterable[int] = ()) -> TileTensors:
        session, count, path = tile.session, len(tile.rows), tile.path
        last = session.start + len(path)
        positions = np.arange(last - count, last)
        rows = tile.base + np.array(tile.rows)
        padding = (0, rounded_up(count, row_multiple) - count)
        positions, rows = (np.pad(each, padding, "edge") for each in (positions, rows))
        extent, first = rounded_up(last, EXTENT_MULTIPLE), int(positions[0]) + 1
        in_order = bool((path == np.arange(session.start, last)).all())
        tail = np.pad(path, (0, extent - last), "edge")
        return cls(
            lane=session.lane,
            rows=torch.from_numpy(rows),
            start=session.start,
            tail=None if in_order else torch.from_numpy(tail),
            extent=extent,
            first=first,
            hidden=torch.from_numpy(np.arange(first, extent) > positions[:, None])[:, None],
            behind={
                window: torch.from_numpy(np.arange(extent) <= positions[:, None] - window)[:, None]
                for window in windows
            },
        )


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tile: TileTensors,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """[pass rows, heads, head_size] queries -> [rows of the tile, heads * head_size].

    scale  of the scores; None: one over the root of the size of a head

    keys: [kv_heads, head_size, places] and values: [kv_heads, places, head_size] of the lane.
    """
    kv_heads, rows = len(keys), len(tile.rows)
    heads, size = query.shape[1], query.shape[2]
    share = heads // kv_heads
    by_head = query.index_select(0, tile.rows).view(rows, kv_heads, share, size).transpose(0, 1)
    scaled = torch.empty(by_head.shape, dtype=query.dtype)
    torch.mul(by_head, size**-0.5 if scale is None else scale, out=scaled)
    seen_keys, seen_values = keys[..., : tile.extent], values[:, : tile.extent]
    if tile.tail is not None:
        seen_keys = torch.cat([keys[..., : tile.start], keys.index_select(2, tile.tail)], dim=2)
        seen_values = torch.cat([values[:, : tile.start], values.index_select(1, tile.tail)], dim=1)
    scores = torch.bmm(scaled.view(kv_heads, rows * share, size), seen_keys)
    by_row = scores.view(kv_heads, rows, share, tile.extent)
    # Written over, not added to: what is hidden may be infinite, or not a number.
    by_row[..., tile.first :].masked_fill_(tile.hidden, float("-inf"))
    if window is not None:
        by_row.masked_fill_(tile.behind[window], float("-inf"))
    mixed = _mix(torch.softmax(scores, dim=-1), seen_values)
    by_rows = mixed.view(kv_heads, rows, share * size).transpose(0, 1)
    return by_rows.reshape(rows, heads * size)


def _mix(weights: Tensor, values: Tensor) -> Tensor:
    """[kv_heads, rows, places] x [kv_heads, places, size] summed in the order of places."""
    if weights.dtype is not torch.float32:
        return torch.bmm(weights, values)
    heads, rows, places = weights.shape
    blocks = places // BLOCK
    partial = torch.bmm(
        weights.view(heads, rows, blocks, BLOCK).transpose(1, 2).reshape(-1, rows, BLOCK),
        values.reshape(-1, BLOCK, values.shape[-1]),
    )
    by_block = partial.view(heads, blocks, rows, -1).unbind(1)
    # One after another: `sum` orders its additions by the shape of what it sums.
    total = by_block[0].clone()
    for block in by_block[1:]:
        total += block
    return total

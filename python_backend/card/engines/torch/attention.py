"""Attention whose result for a row depends on that row's own keys alone, bit for bit.

A stock fused kernel sums in an order that follows the shapes of the pass. Here every sum runs in
the order of absolute position whatever the number of rows, lanes or masked places behind:

- bfloat16: oneDNN's matrix products accumulate along the summed dimension one after another, so
  masked places (whose weight is exactly zero) change nothing;
- float32: the BLAS splits long sums by size, so values are summed in fixed blocks of positions.

`calibration.check_row_invariance` proves it on the machine at hand when an engine is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from card.engines.layout import HIDDEN, AttentionGroup

BLOCK = 64
"""Positions per partial sum in float32; what is visible is a multiple of it."""


@dataclass(frozen=True, slots=True)
class GroupTensors:
    """A `layout.AttentionGroup` as tensors, made once per pass and used by every layer.

    gather  [lanes * rows] or None
    hidden  [lanes, 1, rows, 1, extent - mask_from] bool
    """

    lanes: range
    rows: int
    extent: int
    gather: Tensor | None
    hidden: Tensor
    mask_from: int

    @classmethod
    def of(cls, group: AttentionGroup) -> GroupTensors:
        hidden = torch.from_numpy(group.mask != 0.0)
        return cls(
            group.lanes,
            group.rows,
            group.extent,
            None if group.gather is None else torch.from_numpy(group.gather),
            hidden.view(len(group.lanes), 1, group.rows, 1, -1),
            group.mask_from,
        )


def attend(
    query: Tensor, keys: Tensor, values: Tensor, group: GroupTensors, kv_heads: int
) -> Tensor:
    """[pass rows, heads, head_size] queries -> [lanes * rows, heads * head_size].

    keys: [all lanes * kv_heads, head_size, places]; values: [all lanes * kv_heads, places,
    head_size].
    """
    lanes, rows = len(group.lanes), group.rows
    heads, size = query.shape[1], query.shape[2]
    share = heads // kv_heads
    if group.gather is not None:
        query = query.index_select(0, group.gather)
    by_head = query.view(lanes, rows, kv_heads, share, size).transpose(1, 2)
    scaled = torch.empty(by_head.shape, dtype=query.dtype)
    torch.mul(by_head, size**-0.5, out=scaled)
    scaled = scaled.view(lanes * kv_heads, rows * share, size)

    first = group.lanes.start * kv_heads
    visible = slice(first, first + lanes * kv_heads)
    scores = torch.bmm(scaled, keys[visible, :, : group.extent])
    by_row = scores.view(lanes, kv_heads, rows, share, group.extent)
    # Written over, not added to: what is hidden may be infinite, or not a number.
    by_row[..., group.mask_from :].masked_fill_(group.hidden, HIDDEN)
    weights = torch.softmax(scores, dim=-1)
    mixed = _mix(weights, values[visible, : group.extent])
    return (
        mixed.view(lanes, kv_heads, rows, share * size)
        .transpose(1, 2)
        .reshape(lanes * rows, heads * size)
    )


def _mix(weights: Tensor, value: Tensor) -> Tensor:
    """[batch, rows, places] x [batch, places, size] summed in the order of places."""
    if weights.dtype is not torch.float32:
        return torch.bmm(weights, value)
    batch, rows, places = weights.shape
    blocks = places // BLOCK
    partial = torch.bmm(
        weights.view(batch, rows, blocks, BLOCK).transpose(1, 2).reshape(-1, rows, BLOCK),
        value.reshape(-1, BLOCK, value.shape[-1]),
    )
    by_block = partial.view(batch, blocks, rows, -1).unbind(1)
    # One after another: `sum` orders its additions by the shape of what it sums.
    total = by_block[0].clone()
    for block in by_block[1:]:
        total += block
    return total

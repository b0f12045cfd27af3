"""Attention of rows over the pages of their sessions, each along its own path.

A row at position p sees p + 1 keys: those of its session's prefix in order, then those of its
ancestors among the pending rows, then its own. Positions are taken `BLOCK` at a time, always the
same ones together, wherever their keys lie. A fixed number of splits share the blocks in turn;
each keeps a running softmax, and the splits are joined in order. So a row's bits depend on its path
alone: not on the other rows, nor on whether an ancestor has joined the prefix since.

Rows on one path are attended in tiles: they read the same keys, each up to its own position.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from card.engines.torch.captured.kernels.pages import PAGE
from card.engines.torch.captured.kernels.products import plus_product

BLOCK = PAGE
"""Positions of one step: those of a page, unless paths lead elsewhere."""

SPLITS = 16
"""Programs that share the positions of a row and a head, however many there are."""

_LEAST_QUERIES = 16
"""Of one instruction of the matrix unit: the heads of so many rows as share a key head."""

_LOG2_E = 1.4426950408889634


def rows_per_tile(heads: int, kv_heads: int) -> int:
    """Rows of one session that are attended together."""
    return max(1, _LEAST_QUERIES // (heads // kv_heads))


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    positions: Tensor,
    tiles: Tensor,
    lanes: Tensor,
    starts: Tensor,
    paths: Tensor,
) -> Tensor:
    """[rows, heads, head_size] queries -> [rows, heads * head_size].

    keys, values  [pages, kv_heads, PAGE, head_size], stored for all these rows
    table         [all lanes, pages of a lane] int32
    positions     [rows] int32
    tiles         [tiles, rows_per_tile] int32: rows along one path, -1 behind the last; what no
                  tile holds gets anything
    lanes         [tiles] int32
    starts        [tiles] int32: positions before it are places of the lane
    paths         [tiles, width] int32: the places at start, start + 1, ..., of the tile's last row
    """
    rows, heads, size = queries.shape
    kv_heads = keys.shape[1]
    sums = torch.empty(SPLITS, rows, heads, size, dtype=torch.float32, device=queries.device)
    scales = torch.empty(2, SPLITS, rows, heads, dtype=torch.float32, device=queries.device)
    columns = triton.next_power_of_2(size)
    _attend[(len(tiles), kv_heads, SPLITS)](
        queries,
        keys,
        values,
        table,
        positions,
        tiles,
        lanes,
        starts,
        paths,
        sums,
        scales,
        table.shape[1],
        paths.shape[1],
        rows,
        size**-0.5 * _LOG2_E,
        HEADS=heads,
        KV_HEADS=kv_heads,
        SIZE=size,
        COLUMNS=columns,
        PAGE=PAGE,
        BLOCK=BLOCK,
        SPLITS=SPLITS,
        TILE=tiles.shape[1],
        QUERIES=max(_LEAST_QUERIES, triton.next_power_of_2(heads // kv_heads)),
        num_warps=4,
        num_stages=2,
    )
    out = torch.empty(rows, heads * size, dtype=queries.dtype, device=queries.device)
    _join[(rows, heads)](
        sums,
        scales,
        out,
        rows,
        HEADS=heads,
        SIZE=size,
        COLUMNS=columns,
        SPLITS=SPLITS,
        num_warps=1,
    )
    return out


@triton.jit(do_not_specialize=["pages_of_lane", "path_width", "rows"])
def _attend(
    queries,
    keys,
    values,
    table,
    positions,
    tiles,
    lanes,
    starts,
    paths,
    sums,
    scales,
    pages_of_lane,
    path_width,
    rows,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """One split of the positions, for the heads of a tile's rows that share one key head.

    A query is a row of the tile and a head: query q is head q % SHARE of row q // SHARE.
    """
    SHARE: tl.constexpr = HEADS // KV_HEADS
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    if tl.load(tiles + tile * TILE) < 0:
        return
    query = tl.arange(0, QUERIES)
    member = query // SHARE
    row = tl.load(tiles + tile * TILE + member, member < TILE, -1)
    known = row >= 0
    head = kv_head * SHARE + query % SHARE
    position = tl.load(positions + row, known, -1)
    column = tl.arange(0, COLUMNS)
    within = (column < SIZE)[None, :]
    asked = (row * HEADS + head) * SIZE
    states = tl.load(queries + asked[:, None] + column[None, :], known[:, None] & within, 0.0)
    start = tl.load(starts + tile)
    path = paths + tile * path_width
    pages = table + tl.load(lanes + tile) * pages_of_lane
    last = tl.max(position)
    highest = tl.full((QUERIES,), float("-inf"), tl.float32)
    weight = tl.zeros((QUERIES,), tl.float32)
    total = tl.zeros((QUERIES, COLUMNS), tl.float32)
    for block in range(split, last // BLOCK + 1, SPLITS):
        seen = block * BLOCK + tl.arange(0, BLOCK)
        there = seen <= last
        pending = there & (seen >= start)
        place = tl.where(there, seen, 0)
        place = tl.where(pending, tl.load(path + seen - start, pending, 0), place)
        page = tl.load(pages + place // PAGE).to(tl.int64)
        lies = (page * KV_HEADS + kv_head) * PAGE + place % PAGE
        lies = lies[:, None] * SIZE + column[None, :]
        read = there[:, None] & within
        block_keys = tl.load(keys + lies, read, 0.0)
        block_values = tl.load(values + lies, read, 0.0)
        nothing = tl.zeros((QUERIES, BLOCK), tl.float32)
        scores = plus_product(nothing, states, tl.trans(block_keys)) * scale
        scores = tl.where(seen[None, :] <= position[:, None], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        # A query that has seen nothing yet has no highest score to subtract.
        reference = tl.where(higher == float("-inf"), 0.0, higher)
        kept = tl.exp2(highest - reference)
        weights = tl.exp2(scores - reference[:, None])
        weight = weight * kept + tl.sum(weights, 1)
        weights = weights.to(values.dtype.element_ty)
        total = plus_product(total * kept[:, None], weights, block_values)
        highest = higher
    at = (split * rows + row) * HEADS + head
    tl.store(scales + at, highest, known)
    tl.store(scales + SPLITS * rows * HEADS + at, weight, known)
    tl.store(
        sums + at[:, None] * SIZE + column[None, :],
        total,
        known[:, None] & within,
    )


@triton.jit(do_not_specialize=["rows"])
def _join(
    sums,
    scales,
    out,
    rows,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """What the splits found for one row and head, in the order in which a sum over so many is
    always taken."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    at = row * HEADS + head
    here = tl.arange(0, SPLITS) * rows * HEADS + at
    highest = tl.load(scales + here)
    share = tl.exp2(highest - tl.max(highest))
    weight = tl.sum(tl.load(scales + SPLITS * rows * HEADS + here) * share)
    within = column < SIZE
    found = tl.load(sums + here[:, None] * SIZE + column[None, :], within[None, :], 0.0)
    total = tl.sum(found * share[:, None], 0) / weight
    tl.store(out + at * SIZE + column, total.to(out.dtype.element_ty), within)

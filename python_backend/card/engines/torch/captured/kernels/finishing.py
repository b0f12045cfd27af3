"""Partial sums added in the order of their splits, with what the decoder does next to them.

Every function takes partial sums [splits, rows, outputs] float32, adds a bias where the layer has
one, and rounds to the dtype of what it writes. A row takes part in no other row's result.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 1024
"""Outputs of one program where a row may be divided."""


def plain(sums: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """The product itself, written to `out` [rows, outputs]."""
    splits, rows, outputs = sums.shape
    _plain[(rows, triton.cdiv(outputs, _COLUMNS))](
        sums,
        _or_any(bias, sums),
        out,
        rows * outputs,
        outputs,
        SPLITS=splits,
        BIASED=bias is not None,
        COLUMNS=_COLUMNS,
    )
    return out


def gated(sums: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """silu(gate) * up [rows, outputs / 2] of gate and up, one behind the other."""
    splits, rows, outputs = sums.shape
    out = torch.empty(rows, outputs // 2, dtype=dtype, device=sums.device)
    _gated[(rows, triton.cdiv(outputs // 2, _COLUMNS))](
        sums,
        _or_any(bias, sums),
        out,
        rows * outputs,
        outputs // 2,
        SPLITS=splits,
        BIASED=bias is not None,
        COLUMNS=_COLUMNS,
    )
    return out


def plus_then_norm(
    sums: Tensor, bias: Tensor | None, residual: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """The residual stream with the product added, and its root-mean-square norm for what follows.

    residual  [rows, outputs]
    weight    [outputs] of the norm
    """
    splits, rows, outputs = sums.shape
    hidden, normed = torch.empty_like(residual), torch.empty_like(residual)
    _plus_then_norm[(rows,)](
        sums,
        _or_any(bias, sums),
        residual,
        weight,
        hidden,
        normed,
        rows * outputs,
        outputs,
        epsilon,
        SPLITS=splits,
        BIASED=bias is not None,
        COLUMNS=triton.next_power_of_2(outputs),
        num_warps=8,
    )
    return hidden, normed


def rotate_and_store(
    sums: Tensor,
    bias: Tensor | None,
    norms: tuple[Tensor, Tensor] | None,
    epsilon: float,
    cosine: Tensor,
    sine: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
) -> Tensor:
    """Rotated queries [rows, heads, head_size]; keys and values are stored, each in its slot.

    norms         weights [head_size] of the norms of queries and keys, or None
    cosine, sine  [rows, head_size]
    slots         [rows] int64, page * page size + place of each row
    keys, values  [pages, kv_heads, page size, head_size]

    A value that is not finite is stored as zero and its key as no number, as in
    `torch.kv.storable`: other rows multiply it by a weight of zero.
    """
    splits, rows, outputs = sums.shape
    _, kv_heads, page, size = keys.shape
    queries = torch.empty(rows, heads, size, dtype=keys.dtype, device=sums.device)
    query_norm, key_norm = norms or (sums, sums)
    _rotate_and_store[(rows, heads + kv_heads)](
        sums,
        _or_any(bias, sums),
        query_norm,
        key_norm,
        cosine,
        sine,
        slots,
        queries,
        keys,
        values,
        rows * outputs,
        outputs,
        epsilon,
        HEADS=heads,
        KV_HEADS=kv_heads,
        PAGE=page,
        SIZE=size,
        SPLITS=splits,
        BIASED=bias is not None,
        NORMED=norms is not None,
        COLUMNS=triton.next_power_of_2(size),
        num_warps=1,
    )
    return queries


def _or_any(bias: Tensor | None, sums: Tensor) -> Tensor:
    """A kernel is handed some tensor in place of a bias that there is not."""
    return sums if bias is None else bias


@triton.jit
def _total(
    sums,
    bias,
    at,
    wanted,
    split_stride,
    SPLITS: tl.constexpr,
    BIASED: tl.constexpr,
    biased_at,
):
    """What the splits found at these places, one after another, then the bias."""
    total = tl.load(sums + at, wanted, 0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(sums + split * split_stride + at, wanted, 0.0)
    if BIASED:
        total += tl.load(bias + biased_at, wanted, 0.0).to(tl.float32)
    return total


@triton.jit
def _plain(
    sums,
    bias,
    out,
    split_stride,
    outputs,
    SPLITS: tl.constexpr,
    BIASED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    wanted = column < outputs
    at = row * outputs + column
    total = _total(sums, bias, at, wanted, split_stride, SPLITS, BIASED, column)
    tl.store(out + at, total.to(out.dtype.element_ty), wanted)


@triton.jit
def _gated(
    sums,
    bias,
    out,
    split_stride,
    half,
    SPLITS: tl.constexpr,
    BIASED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    wanted = column < half
    at = row * 2 * half + column
    gate = _total(sums, bias, at, wanted, split_stride, SPLITS, BIASED, column)
    up = _total(sums, bias, at + half, wanted, split_stride, SPLITS, BIASED, column + half)
    found = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * half + column, found.to(out.dtype.element_ty), wanted)


@triton.jit
def _plus_then_norm(
    sums,
    bias,
    residual,
    weight,
    hidden,
    normed,
    split_stride,
    outputs,
    epsilon,
    SPLITS: tl.constexpr,
    BIASED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    column = tl.arange(0, COLUMNS)
    wanted = column < outputs
    at = tl.program_id(0) * outputs + column
    total = _total(sums, bias, at, wanted, split_stride, SPLITS, BIASED, column)
    total += tl.load(residual + at, wanted, 0.0).to(tl.float32)
    rounded = total.to(hidden.dtype.element_ty)
    tl.store(hidden + at, rounded, wanted)
    states = rounded.to(tl.float32)
    scaled = states * _norm_scale(states, outputs, epsilon)
    scaled *= tl.load(weight + column, wanted, 0.0).to(tl.float32)
    tl.store(normed + at, scaled.to(normed.dtype.element_ty), wanted)


@triton.jit
def _norm_scale(states, size, epsilon):
    """What the root-mean-square norm multiplies [columns] states with, zero behind `size`."""
    return tl.rsqrt(tl.sum(states * states) / size + epsilon)


@triton.jit
def _norm_weight(query_norm, key_norm, of_query, column, wanted):
    query_weight = tl.load(query_norm + column, wanted, 0.0).to(tl.float32)
    key_weight = tl.load(key_norm + column, wanted, 0.0).to(tl.float32)
    return tl.where(of_query, query_weight, key_weight)


@triton.jit
def _rotate_and_store(
    sums,
    bias,
    query_norm,
    key_norm,
    cosine,
    sine,
    slots,
    queries,
    keys,
    values,
    split_stride,
    outputs,
    epsilon,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    BIASED: tl.constexpr,
    NORMED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A program takes one head of the queries, or one of the keys and the values beside it."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    wanted = column < SIZE
    # Halves of a head are rotated with each other.
    partner = (column + SIZE // 2) % SIZE
    at = head * SIZE + column
    across = head * SIZE + partner
    dtype = queries.dtype.element_ty
    begin = row * outputs
    state = _total(sums, bias, begin + at, wanted, split_stride, SPLITS, BIASED, at)
    other = _total(sums, bias, begin + across, wanted, split_stride, SPLITS, BIASED, across)
    if NORMED:
        state = state.to(dtype).to(tl.float32)
        other = other.to(dtype).to(tl.float32)
        scale = _norm_scale(state, SIZE, epsilon)
        of_query = head < HEADS
        state *= scale * _norm_weight(query_norm, key_norm, of_query, column, wanted)
        other *= scale * _norm_weight(query_norm, key_norm, of_query, partner, wanted)
    angle = row * SIZE + column
    rotated = state * tl.load(cosine + angle, wanted, 0.0).to(tl.float32)
    rotated += other * tl.load(sine + angle, wanted, 0.0).to(tl.float32)
    if head < HEADS:
        tl.store(queries + (row * HEADS + head) * SIZE + column, rotated.to(dtype), wanted)
    else:
        slot = tl.load(slots + row)
        kv_head = head - HEADS
        at = at + KV_HEADS * SIZE
        value = _total(sums, bias, begin + at, wanted, split_stride, SPLITS, BIASED, at)
        value = value.to(dtype).to(tl.float32)
        finite = tl.abs(value) < float("inf")
        place = ((slot // PAGE) * KV_HEADS + kv_head) * PAGE + slot % PAGE
        here = place * SIZE + column
        tl.store(keys + here, tl.where(finite, rotated, float("nan")).to(dtype), wanted)
        tl.store(values + here, tl.where(finite, value, 0.0).to(dtype), wanted)

"""Products of few rows with large matrices, which are as fast as the matrices can be read.

A matrix [outputs, inputs] is divided into tiles of outputs, and its inputs into a fixed number of
splits, so that there is work for every multiprocessor. Each program reads its part of the matrix
once, whatever the number of rows, and leaves partial sums in float32; `finishing` adds those of a
row in the order of the splits.

Rows are multiplied sixteen at a time: one shape of the matrix unit, whatever the number of rows.
"""

from __future__ import annotations

import math
import os

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
"""Whether kernels are run by Triton's interpreter, line by line in NumPy."""


@triton.jit
def plus_product(total, left, right):
    """total + left right, in float32. Products of two numbers of 16 bits are exact there."""
    if INTERPRETED:
        # NumPy's product takes the bits of bfloat16 for integers, and the order in which it adds
        # depends on where a row stands. Here every sum is taken in the same order.
        columns = left.to(tl.float32)[:, :, None] * right.to(tl.float32)[None, :, :]
        return total + tl.sum(columns, 1)
    return tl.dot(left, right, total)


ROW_TILE = 16
"""Rows of one instruction of the matrix unit."""

MOST_ROWS = 64
"""Rows of one launch. More rows take several launches, which read the matrix again."""

OUTPUT_TILE = 64
"""Outputs of one program: a row is read again by every program, a weight by one."""

INPUT_TILE = 128
"""Inputs of one step of a program: two whole lines of the cache of every weight row."""

_PROGRAMS_PER_MULTIPROCESSOR = 2.0
"""All of them run at once, and each holds several tiles in flight: enough to hide the memory's
latency. More programs leave more partial sums to add up."""

_WARPS, _STAGES = 4, 4


def splits_of(outputs: int, inputs: int, multiprocessors: int) -> int:
    """Into how many parts the inputs of a matrix are divided on such a device."""
    steps = math.ceil(inputs / INPUT_TILE)
    tiles = math.ceil(outputs / OUTPUT_TILE)
    wanted = math.ceil(_PROGRAMS_PER_MULTIPROCESSOR * multiprocessors / tiles)
    steps_each = math.ceil(steps / min(wanted, steps))
    return math.ceil(steps / steps_each)


class SkinnyLinear:
    """A matrix, perhaps a bias, and the fixed division of its work.

    weight  [outputs, inputs] bfloat16 or float16, one row after another
    bias    [outputs] or None; added where the partial sums are added
    splits  parts of the inputs
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, multiprocessors: int) -> None:
        if not weight.is_contiguous():
            raise ValueError("the rows of a weight matrix must lie one after another")
        self.weight = weight
        self.bias = bias
        self.outputs, self.inputs = weight.shape
        self.splits = splits_of(self.outputs, self.inputs, multiprocessors)
        self._steps = math.ceil(math.ceil(self.inputs / INPUT_TILE) / self.splits)

    def partial(self, rows: Tensor) -> Tensor:
        """[rows, inputs] -> partial sums [splits, rows, outputs] float32."""
        count = len(rows)
        sums = torch.empty(
            self.splits, count, self.outputs, dtype=torch.float32, device=rows.device
        )
        for first in range(0, count, MOST_ROWS):
            some = min(MOST_ROWS, count - first)
            _multiply[(triton.cdiv(self.outputs, OUTPUT_TILE), self.splits)](
                rows[first:],
                self.weight,
                sums[:, first:],
                some,
                self.outputs,
                self.inputs,
                count * self.outputs,
                self._steps,
                ROW_TILES=_row_tiles(some),
                ROW_TILE=ROW_TILE,
                OUTPUT_TILE=OUTPUT_TILE,
                INPUT_TILE=INPUT_TILE,
                num_warps=_WARPS,
                num_stages=_STAGES,
            )
        return sums


def _row_tiles(rows: int) -> int:
    """1, 2 or 4, so that few kernels are compiled."""
    tiles = math.ceil(rows / ROW_TILE)
    return tiles if tiles < 3 else 4


@triton.jit(do_not_specialize=["rows", "steps"])
def _multiply(
    inputs,
    weight,
    sums,
    rows,
    outputs,
    width,
    split_stride,
    steps,
    ROW_TILES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    OUTPUT_TILE: tl.constexpr,
    INPUT_TILE: tl.constexpr,
):
    """Partial sums of one tile of outputs over one split of the inputs, for all rows.

    The matrix is the left operand and the rows are the right one: the unit takes 64 rows or more
    of the left operand from shared memory, and no more than 8 columns of the right one. Every tile
    of rows has an accumulator of its own, and sees the same instructions in the same order.
    """
    output = tl.program_id(0) * OUTPUT_TILE + tl.arange(0, OUTPUT_TILE)
    split = tl.program_id(1)
    row = tl.arange(0, ROW_TILE)
    known = (output < outputs)[:, None]
    # The offset of a row of a large vocabulary does not fit into 32 bits.
    weight_row = weight + output.to(tl.int64)[:, None] * width
    sum_0 = tl.zeros((OUTPUT_TILE, ROW_TILE), tl.float32)
    sum_1 = tl.zeros((OUTPUT_TILE, ROW_TILE), tl.float32)
    sum_2 = tl.zeros((OUTPUT_TILE, ROW_TILE), tl.float32)
    sum_3 = tl.zeros((OUTPUT_TILE, ROW_TILE), tl.float32)
    for step in range(steps):
        at = (split * steps + step) * INPUT_TILE + tl.arange(0, INPUT_TILE)
        # The last split may have fewer inputs than steps.
        weights = tl.load(weight_row + at[None, :], known & (at < width)[None, :], 0.0)
        sum_0 = _plus_product(sum_0, weights, inputs, row, rows, at, width)
        if ROW_TILES > 1:
            sum_1 = _plus_product(sum_1, weights, inputs, row + ROW_TILE, rows, at, width)
        if ROW_TILES > 2:
            sum_2 = _plus_product(sum_2, weights, inputs, row + 2 * ROW_TILE, rows, at, width)
            sum_3 = _plus_product(sum_3, weights, inputs, row + 3 * ROW_TILE, rows, at, width)
    here = sums + split * split_stride
    _store(here, sum_0, row, rows, output, outputs)
    if ROW_TILES > 1:
        _store(here, sum_1, row + ROW_TILE, rows, output, outputs)
    if ROW_TILES > 2:
        _store(here, sum_2, row + 2 * ROW_TILE, rows, output, outputs)
        _store(here, sum_3, row + 3 * ROW_TILE, rows, output, outputs)


@triton.jit
def _plus_product(total, weights, inputs, row, rows, at, width):
    """total [outputs, rows] + weights [outputs, inputs] times the inputs of these rows."""
    wanted = (row < rows)[None, :] & (at < width)[:, None]
    columns = tl.load(inputs + row[None, :] * width + at[:, None], wanted, 0.0)
    return plus_product(total, weights, columns)


@triton.jit
def _store(sums, total, row, rows, output, outputs):
    wanted = (row < rows)[None, :] & (output < outputs)[:, None]
    tl.store(sums + row[None, :] * outputs + output[:, None], total, wanted)

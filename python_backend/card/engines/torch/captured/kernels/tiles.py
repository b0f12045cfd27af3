"""The product of two tiles, as every kernel here takes it."""

from __future__ import annotations

import os

import triton
import triton.language as tl

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

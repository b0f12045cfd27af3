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
    if INTERPRETED:  # its matrix product takes the bits of bfloat16 for integers
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, total)

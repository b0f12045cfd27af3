"""How matrices are stored in the graph."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops


class WeightFormat(Protocol):
    """Makes a constant of a matrix [outputs, inputs]; `itemsize`: bytes that a number takes."""

    itemsize: int

    def constant(self, matrix: NDArray[np.float32]) -> Any: ...


class Float32Weights:
    """As they are."""

    itemsize = 4

    def constant(self, matrix: NDArray[np.float32]) -> Any:
        return ops.constant(matrix)


class Bfloat16Weights:
    """Rounded to bfloat16, which loses nothing of a bfloat16 checkpoint."""

    itemsize = 2

    def constant(self, matrix: NDArray[np.float32]) -> Any:
        # The tensor owns its memory: one made of an array would only borrow the array's.
        stored = ov.Tensor(ov.Type.bf16, list(matrix.shape))
        stored.data.view(np.int16)[:] = to_bfloat16(matrix)
        return ops.convert(ops.constant(stored), ov.Type.f32)


class Int8Weights:
    """Eight bits and a scale per output, symmetric: half the bytes of bfloat16, another model."""

    itemsize = 1

    def constant(self, matrix: NDArray[np.float32]) -> Any:
        scale = np.maximum(np.abs(matrix).max(axis=1, keepdims=True), 1e-12) / np.float32(127)
        stored = ops.constant(np.round(matrix / scale).astype(np.int8))
        return ops.multiply(ops.convert(stored, ov.Type.f32), ops.constant(scale))


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.int16]:
    """The bits of the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return rounded.astype(np.uint16).view(np.int16)

"""How matrices are stored in the graph.

The plugin leaves a matrix of few bits as it is only where the operator that widens it is marked as
decompression, as by OpenVINO's own converters; else each decoder of a graph would unfold its own.
Under passes in float32 it also asks that it can take the graph for a language model (`model_over`).
Matrices of sixteen bits are then half the bytes to read, and the product widens them in its
registers.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops


class WeightFormat(Protocol):
    """Makes a constant of a matrix [outputs, inputs].

    itemsize    bytes that a number takes
    compressed  whether passes are computed in float32 all the same
    """

    itemsize: int
    compressed: bool

    def constant(self, matrix: NDArray[np.float32]) -> Any: ...


class Float32Weights:
    """As they are."""

    itemsize = 4
    compressed = False

    def constant(self, matrix: NDArray[np.float32]) -> Any:
        return ops.constant(matrix)


class Bfloat16Weights:
    """Rounded to bfloat16, which loses nothing of a bfloat16 checkpoint."""

    itemsize = 2
    compressed = False

    def constant(self, matrix: NDArray[np.float32]) -> Any:
        # The tensor owns its memory: one made of an array would only borrow the array's.
        stored = ov.Tensor(ov.Type.bf16, list(matrix.shape))
        stored.data.view(np.int16)[:] = to_bfloat16(matrix)
        return _decompressing(ops.convert(ops.constant(stored), ov.Type.f32))


class CompressedBfloat16Weights(Bfloat16Weights):
    """A bfloat16 checkpoint's, for passes in float32."""

    compressed = True


class CompressedFloat16Weights:
    """A float16 checkpoint's, for passes in float32."""

    itemsize = 2
    compressed = True

    def constant(self, matrix: NDArray[np.float32]) -> Any:
        return _decompressing(ops.convert(ops.constant(matrix.astype(np.float16)), ov.Type.f32))


class Int8Weights:
    """Eight bits and a scale per output, symmetric: half the bytes of bfloat16, another model."""

    itemsize = 1
    compressed = False

    def constant(self, matrix: NDArray[np.float32]) -> Any:
        scale = np.maximum(np.abs(matrix).max(axis=1, keepdims=True), 1e-12) / np.float32(127)
        stored = ops.constant(np.round(matrix / scale).astype(np.int8))
        return ops.multiply(ops.convert(stored, ov.Type.f32), ops.constant(scale))


COMPRESSED_FORMATS: dict[str, type[WeightFormat]] = {
    "BF16": CompressedBfloat16Weights,
    "F16": CompressedFloat16Weights,
}
"""What loses nothing, by what a checkpoint's matrices are stored in."""


def model_over(weights: WeightFormat, results: list[Any], inputs: list[Any], name: str) -> ov.Model:
    """A graph with matrices of this format. Around compressed ones, it is one that the plugin takes
    for a language model: it tells one by an attention and a state. These two are its smallest, and
    nothing depends on them."""
    if not weights.compressed:
        return ov.Model(results, inputs, name)
    shape = [1, 1, 1, 1]
    state = ops.read_value(ops.constant(np.zeros(shape, np.float32)), "state", ov.Type.f32, shape)
    attention = ops.scaled_dot_product_attention(state, state, state)
    return ov.Model(results, [ops.assign(attention, "state")], inputs, name)


def _decompressing(widened: Any) -> Any:
    widened.get_rt_info()["decompression_0"] = ""
    return widened


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.int16]:
    """The bits of the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return rounded.astype(np.uint16).view(np.int16)

"""How matrices are stored in the graph, and how a pass is multiplied by them.

The plugin leaves a matrix of few bits as it is only where the operator that widens it is marked as
decompression, as by OpenVINO's own converters; else each decoder of a graph would unfold its own.
Under passes in float32 it also asks that it can take the graph for a language model (`model_over`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from card.engines.checkpoints import GroupedMatrix, JoinedMatrix, Matrix, in_bytes, stacked
from card.engines.openvino.memory import WeightMemory
from card.engines.openvino.nodes import Node, integers


class WeightFormat(Protocol):
    """Makes constants and products of matrices.

    name        of what is stored, for the log
    compressed  whether passes are computed in float32 although weights take fewer bits
    memory      of the constants
    """

    name: str
    compressed: bool
    memory: WeightMemory

    def constant(self, matrix: Matrix) -> Node:
        """[outputs, inputs] of a matrix with rows that are looked up too."""

    def product(self, inputs: Node, matrix: Matrix) -> Node:
        """[rows, outputs] of inputs [rows, inputs]."""


class _Plain:
    """A product by a constant. The matrix with rows that are looked up may be the head too: both
    read one constant."""

    def __init__(self, memory: WeightMemory) -> None:
        self.memory = memory
        self._table: tuple[Matrix, Node] | None = None

    def constant(self, matrix: Matrix) -> Node:
        self._table = matrix, self._made(matrix)
        return self._table[1]

    def product(self, inputs: Node, matrix: Matrix) -> Node:
        table, of_table = self._table or (None, None)
        stored = of_table if table is matrix else self._made(matrix)
        return ops.matmul(inputs, stored, False, True)

    def _made(self, matrix: Matrix) -> Node:
        raise NotImplementedError


class Float32Weights(_Plain):
    """As they are."""

    name = "float32"
    compressed = False

    def _made(self, matrix: Matrix) -> Node:
        return self.memory.constant(matrix.dense(), ov.Type.f32, matrix.shape)


class Bfloat16Weights(_Plain):
    """Rounded to bfloat16, which loses nothing of a bfloat16 checkpoint."""

    name = "bfloat16"
    compressed = False

    def _made(self, matrix: Matrix) -> Node:
        stored = self.memory.constant(to_bfloat16(matrix.dense()), ov.Type.bf16, matrix.shape)
        return _decompressing(ops.convert(stored, ov.Type.f32))


class CompressedBfloat16Weights(Bfloat16Weights):
    """A bfloat16 checkpoint's, for passes in float32."""

    compressed = True


class CompressedFloat16Weights(_Plain):
    """A float16 checkpoint's, for passes in float32."""

    name = "float16"
    compressed = True

    def _made(self, matrix: Matrix) -> Node:
        stored = self.memory.constant(matrix.dense().astype(np.float16), ov.Type.f16, matrix.shape)
        return _decompressing(ops.convert(stored, ov.Type.f32))


_CODES = {4: ov.Type.u4, 8: ov.Type.u8}
_MOST_IN_GROUP = 64
"""Most inputs that share a scale where codes of five and six bits become codes of eight."""
_LEAST_IN_GROUP = 32
_SMALL = 2 << 20
"""Most weights of a joined matrix that becomes one matrix of bytes."""


class GroupedWeights:
    """Codes of four or eight bits, with a scale and a zero point for each group of inputs.

    Codes of five and six bits become codes of eight (`in_bytes`); other codes stay as they are.

    The plugin's fast products need whole zero points. A group with a minimum that is no
    multiple of its scale (Q4_1, Q4_K) is cut in two: codes about the nearest whole zero point, and
    the remainder that all its weights share. The remainder is multiplied by the sum of the group's
    inputs. So no weight is rounded by more than float16 rounds a remainder; the plugin rounds the
    inputs of products by codes (`graph`).

    dense  stores matrices that are not grouped
    """

    name = "groups of codes"
    compressed = True

    def __init__(self, dense: WeightFormat) -> None:
        self._dense = dense
        self.memory = dense.memory
        self._table: tuple[Matrix, Node] | None = None

    def constant(self, matrix: Matrix) -> Node:
        if not isinstance(matrix, GroupedMatrix):
            return self._dense.constant(matrix)
        stored = _stored(matrix)
        zeros, remainder = stored.zero_points()
        if remainder.any():  # which only a product could add
            stored = in_bytes(matrix, _MOST_IN_GROUP)
            return self._widened(stored, stored.zero_points()[0])
        self._table = matrix, self._widened(stored, zeros)
        return self._table[1]

    def product(self, inputs: Node, matrix: Matrix) -> Node:
        if isinstance(matrix, JoinedMatrix):
            return self._joined(inputs, matrix)
        if not isinstance(matrix, GroupedMatrix):
            return self._dense.product(inputs, matrix)
        if self._table is not None and self._table[0] is matrix:
            return ops.matmul(inputs, self._table[1], False, True)
        matrix = _stored(matrix)
        zeros, remainder = matrix.zero_points()
        product = ops.matmul(inputs, self._widened(matrix, zeros), False, True)
        if not remainder.any():
            return product
        groups = ops.reshape(inputs, integers([0, -1, matrix.group]), True)
        sums = ops.reduce_sum(groups, integers([-1]))
        halves = self.memory.constant(remainder.astype(np.float16), ov.Type.f16, remainder.shape)
        shared = _decompressing(ops.convert(halves, ov.Type.f32))
        return ops.add(product, ops.matmul(sums, shared, False, True))

    def _joined(self, inputs: Node, matrix: JoinedMatrix) -> Node:
        """The products of all parts side by side; one product if the matrix is small, because
        another operator then takes longer than more bytes."""
        outputs, width = matrix.shape
        grouped = [part for part in matrix.parts if isinstance(part, GroupedMatrix)]
        if outputs * width <= _SMALL and len(grouped) == len(matrix.parts):
            alike = stacked([_with_bytes(part) for part in grouped])
            if isinstance(alike, GroupedMatrix):
                return self.product(inputs, alike)
        return ops.concat([self.product(inputs, part) for part in matrix.parts], -1)

    def _widened(self, matrix: GroupedMatrix, zeros: NDArray[np.uint8]) -> Node:
        """[outputs, inputs]: scale · (code - zero), as OpenVINO's converters write it."""
        outputs, inputs = matrix.shape
        kind = _CODES[matrix.stored_bits]
        codes = self._packed(matrix.codes.reshape(outputs, -1, matrix.group), kind)
        if zeros.min() == zeros.max():
            zeros = zeros[:1, :1]
            kind = ov.Type.u8
        zero = self._packed(zeros[..., None], kind)
        # Not of sixteen bits: the plugin would widen them anew for each decoder of a graph.
        scales = matrix.scale.astype(np.float32)
        scale = self.memory.constant(scales, ov.Type.f32, [*scales.shape, 1])
        scaled = ops.multiply(ops.subtract(codes, zero), scale)
        return _decompressing(ops.reshape(scaled, integers([outputs, inputs]), False))

    def _packed(self, codes: NDArray[np.uint8], kind: ov.Type) -> Node:
        """Codes in float32; of those of four bits two share a byte, the first in its low half."""
        flat = codes.reshape(-1)
        if kind == ov.Type.u4:
            flat = flat if len(flat) % 2 == 0 else np.append(flat, np.uint8(0))
            pairs = np.ascontiguousarray(flat).view("<u2")
            flat = (pairs | pairs >> 4).astype(np.uint8)
        return ops.convert(self.memory.constant(flat, kind, codes.shape), ov.Type.f32)


def _stored(matrix: GroupedMatrix) -> GroupedMatrix:
    """The matrix with codes of as many bits as an engine has."""
    return matrix if matrix.bits in _CODES or matrix.bits < 4 else in_bytes(matrix, _MOST_IN_GROUP)


def _with_bytes(matrix: GroupedMatrix) -> GroupedMatrix:
    return matrix if matrix.bits == 8 else in_bytes(matrix, _LEAST_IN_GROUP)


COMPRESSED_FORMATS: dict[str, type[CompressedBfloat16Weights | CompressedFloat16Weights]] = {
    "BF16": CompressedBfloat16Weights,
    "F16": CompressedFloat16Weights,
}
"""What loses nothing, by what a checkpoint's matrices are stored in."""


def model_over(
    weights: WeightFormat, results: Sequence[Any], inputs: Sequence[Any], name: str
) -> ov.Model:
    """A graph with matrices of this format. Around compressed ones, it is one that the plugin takes
    for a language model: it tells one by an attention and a state. These two are its smallest, and
    nothing depends on them."""
    if not weights.compressed:
        return ov.Model(results, inputs, name)
    shape = [1, 1, 1, 1]
    state = ops.read_value(ops.constant(np.zeros(shape, np.float32)), "state", ov.Type.f32, shape)
    attention = ops.scaled_dot_product_attention(state, state, state)
    return ov.Model(results, [ops.assign(attention, "state")], inputs, name)


def _decompressing(widened: Node) -> Node:
    widened.get_rt_info()["decompression_0"] = ""
    return widened


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.int16]:
    """The bits of the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return rounded.astype(np.uint16).view(np.int16)

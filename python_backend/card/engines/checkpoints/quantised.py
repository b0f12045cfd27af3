"""Quantises a checkpoint's matrices while reading them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from card.engines.checkpoints.matrices import GroupedMatrix, Matrix, stacked
from card.engines.checkpoints.tensors import (
    Checkpoint,
    DerivedCheckpoint,
    LayerTensors,
    LinearTensors,
)

_PART = 1 << 18
"""Weights quantised at a time. They stay in the processor's cache, which takes a third of the time.
"""


class QuantisedCheckpoint(DerivedCheckpoint):
    """Another checkpoint, quantised. The embedding always takes eight bits: it is looked up, and as
    a head it decides the tokens.

    bits   bits of a weight, 4 or 8
    group  wanted number of inputs that share a scale; see `group_of`
    """

    def __init__(self, checkpoint: Checkpoint, bits: int, group: int) -> None:
        super().__init__(checkpoint)
        self._bits = bits
        self._group = group

    @property
    def matrices_are(self) -> str:
        return f"int{self._bits}"

    @property
    def is_grouped(self) -> bool:
        return True

    def embedding(self) -> Matrix:
        return quantised(self._checkpoint.embedding(), 8, self._group)

    def head(self) -> Matrix | None:
        head = self._checkpoint.head()
        return None if head is None else quantised(head, 8, self._group)

    def layers(self) -> Iterator[LayerTensors]:
        for layer in self._checkpoint.layers():
            yield replace(
                layer,
                query_key_value=self._linear(layer.query_key_value),
                output=self._linear(layer.output),
                gate_up=self._linear(layer.gate_up),
                down=self._linear(layer.down),
            )

    def _linear(self, tensors: LinearTensors) -> LinearTensors:
        return replace(tensors, weight=quantised(tensors.weight, self._bits, self._group))


def group_of(inputs: int, wanted: int) -> int:
    """Inputs of a row that share a scale; all inputs if `wanted` does not divide their number."""
    return wanted if inputs % wanted == 0 else inputs


def quantised(
    matrix: Matrix, bits: int, group: int, *, centred: bool | None = None
) -> GroupedMatrix:
    """The matrix in groups of codes. Zero points are whole numbers.

    centred  whether the range of codes is symmetric around 0, and not from the least to the
             greatest weight of a group; None: symmetric for eight bits
    """
    centred = bits == 8 if centred is None else centred
    outputs, inputs = matrix.shape
    group = group_of(inputs, group)
    part = max(1, _PART // inputs)
    parts = [matrix.rows(slice(at, at + part)) for at in range(0, outputs, part)]
    whole = stacked([_quantised(part, bits, group, centred=centred) for part in parts])
    assert isinstance(whole, GroupedMatrix)
    return whole


def _quantised(matrix: Matrix, bits: int, group: int, *, centred: bool) -> GroupedMatrix:
    outputs, inputs = matrix.shape
    weights = matrix.dense().reshape(outputs, -1, group)
    most = 2**bits - 1
    if centred:
        scale = _positive(np.abs(weights).max(axis=-1) / np.float32(most // 2))
        zero = np.full_like(scale, most // 2 + 1)
    else:
        least = np.minimum(weights.min(axis=-1), 0)
        scale = _positive((np.maximum(weights.max(axis=-1), 0) - least) / np.float32(most))
        zero = np.clip(np.round(-least / scale), 0, most).astype(np.float32)
    codes = np.clip(np.round(weights / scale[..., None]) + zero[..., None], 0, most)
    return GroupedMatrix(
        codes.astype(np.uint8).reshape(outputs, inputs), scale, -zero * scale, bits
    )


def _positive(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """`scale` with zeros replaced, because weights are divided by it."""
    return np.maximum(scale, np.finfo(np.float32).tiny)

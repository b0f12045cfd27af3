"""A checkpoint with its small matrices of four bits (those of attention) stored in eight bits.

If the minima of a matrix are not multiples of its scales (Q4_1), its product takes two more
operators (`openvino.weights`). For a small matrix these take longer than reading twice as many
bytes, and products by bytes with few scales are the fastest. Smoothing keeps the rounding error
small (Xiao et al., SmoothQuant, arXiv 2211.10438): each input is divided by a factor, and its
weights are multiplied by it, so that neither weights nor inputs differ much in size. The division
is folded into the operator that computes the inputs: a norm's weights, or rows of a matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from card.engines.architecture import Architecture
from card.engines.checkpoints.forward import Inputs, forward, inputs_of
from card.engines.checkpoints.matrices import DenseMatrix, GroupedMatrix, Matrix
from card.engines.checkpoints.quantised import quantised
from card.engines.checkpoints.tensors import (
    Checkpoint,
    DerivedCheckpoint,
    LayerTensors,
    LinearTensors,
)

_SMALL = 2 << 20
"""Most weights of a small matrix: at 40 GB/s its additional bytes take as long as two operators."""

_TOKENS = 16
"""Length of the text of random ids that shows the magnitude of each product's inputs."""

_MOST_IN_GROUP = 256
"""Most inputs that share a scale. One scale for a whole row is not faster with one row, up to 3 %
faster with several rows, and rounds by a third more."""

_ROUNDED_TOGETHER = 16
"""A product that rounds its inputs has one scale for this number of inputs, or a multiple."""

_LEAST = 1e-4
"""Smaller relative magnitudes are raised to this, which prevents division by zero."""


class SmoothedCheckpoint(DerivedCheckpoint):
    """Another checkpoint, with its small matrices in bytes.

    smoothing  the exponents of all factors, a byte each, complete once all layers are read; those
               of an earlier load of the same checkpoint need not be computed again
    """

    def __init__(
        self, checkpoint: Checkpoint, architecture: Architecture, smoothing: bytes = b""
    ) -> None:
        super().__init__(checkpoint)
        self._architecture = architecture
        self.smoothing = smoothing

    def layers(self) -> Iterator[LayerTensors]:
        a = self._architecture
        powers = np.zeros((a.layers, a.kv_heads * a.head_size + a.hidden), np.int8)
        known = len(self.smoothing) == powers.size
        if known:
            powers = np.frombuffer(self.smoothing, np.int8).reshape(powers.shape)
        ids = np.random.default_rng(0).integers(0, a.vocabulary, _TOKENS)
        states = self._checkpoint.embedding().rows(ids).dense().astype(np.float64)
        behind: tuple[LayerTensors, Inputs] | None = None
        with ThreadPoolExecutor(1) as executor:  # while the next layer is computed
            before: Future[LayerTensors] | None = None
            for index, stored in enumerate(self._checkpoint.layers()):
                unpacked, inputs = _unpacked(stored), None
                if not known:
                    if behind is not None:
                        states = forward(a, *behind, states)
                    inputs = inputs_of(a, unpacked, states)
                    behind = unpacked, inputs
                if before is not None:
                    yield before.result()
                before = executor.submit(self._smoothed, stored, unpacked, powers[index], inputs)
            if before is not None:
                yield before.result()
        self.smoothing = powers.tobytes()

    def _smoothed(
        self,
        stored: LayerTensors,
        unpacked: LayerTensors,
        powers: NDArray[np.int8],
        inputs: Inputs | None,
    ) -> LayerTensors:
        """The layer, `stored` in groups of few bits, with its small matrices in bytes.

        powers  exponents of the factors of values, then of attention's inputs; computed and stored
                here if `inputs` are given
        """
        a, layer = self._architecture, stored
        joint, output = unpacked.query_key_value, unpacked.output
        of_values, of_inputs = np.split(powers, [a.kv_heads * a.head_size])
        if output is not stored.output:
            if inputs is not None:
                of_values[:] = _powers(_by_values(output.weight.dense(), a), _of_values(inputs, a))
            factors = _factors(of_values)
            values = slice((a.heads + a.kv_heads) * a.head_size, None)
            joint = _divided(joint, values, factors)
            layer = replace(
                layer,
                output=_in_bytes(output, _for_queries(factors, a)),
                query_key_value=joint,
            )
        if unpacked.query_key_value is not stored.query_key_value:
            if inputs is not None:
                of_inputs[:] = _powers(joint.weight.dense(), _root_mean_square(inputs.attention))
            factors = _factors(of_inputs)
            assert layer.input_norm is not None  # as plain layers have
            layer = replace(
                layer,
                query_key_value=_in_bytes(joint, factors),
                input_norm=layer.input_norm / factors,
            )
        return layer


def worth_smoothing(checkpoint: Checkpoint) -> bool:
    """Whether the first layer has a matrix that would be stored in bytes."""
    first = next(checkpoint.layers())
    return any(_is_converted(tensors.weight) for tensors in (first.query_key_value, first.output))


def _unpacked(layer: LayerTensors) -> LayerTensors:
    """The layer with the matrices to convert as dense numbers.

    The other matrices are larger and take longer to convert at a start; and at a few tokens some
    inputs of `down` are forty times as large as the rest.
    """

    def unpacked(tensors: LinearTensors) -> LinearTensors:
        if not _is_converted(tensors.weight):
            return tensors
        return replace(tensors, weight=DenseMatrix(tensors.weight.dense()))

    return replace(
        layer, query_key_value=unpacked(layer.query_key_value), output=unpacked(layer.output)
    )


def _is_converted(matrix: Matrix) -> bool:
    return (
        isinstance(matrix, GroupedMatrix)
        and matrix.codes.size <= _SMALL
        and bool(matrix.zero_points()[1].any())
    )


def _widest_group(inputs: int) -> int:
    """The largest group of inputs that divides a row, within `_MOST_IN_GROUP`."""
    sizes = range(_MOST_IN_GROUP, 0, -_ROUNDED_TOGETHER)
    return next((size for size in sizes if inputs % size == 0), inputs)


def _powers(weights: NDArray[np.float32], inputs: NDArray[np.float64]) -> NDArray[np.int8]:
    """Exponents of the powers of two that multiply the weights [outputs, inputs] of each input. A
    power of two causes no rounding, and the last bits of a sum do not change it.

    inputs  magnitudes of the inputs
    """
    squares = np.square(weights)
    rows = np.maximum(squares.mean(axis=1, keepdims=True, dtype=np.float64), _LEAST**4)
    columns = (1.0 / rows[:, 0]) @ squares.astype(np.float64) / len(rows)
    columns = np.maximum(np.sqrt(columns), _LEAST)
    factors = np.sqrt(np.maximum(np.nan_to_num(inputs), _LEAST**2) / columns)
    logarithms = np.log2(np.maximum(factors, factors.max() * 1e-3))
    return np.asarray(np.round(logarithms - logarithms.mean()), np.int8)


def _factors(powers: NDArray[np.int8]) -> NDArray[np.float32]:
    return np.asarray(np.ldexp(np.float32(1), powers), np.float32)


def _by_values(output: NDArray[np.float32], a: Architecture) -> NDArray[np.float32]:
    """[hidden, heads * head_size] -> [hidden * group, kv_heads * head_size]: heads that read the
    same values below each other."""
    apart = output.reshape(len(output), a.kv_heads, a.group, a.head_size)
    return apart.swapaxes(1, 2).reshape(-1, a.kv_heads * a.head_size)


def _of_values(inputs: Inputs, a: Architecture) -> NDArray[np.float64]:
    """[kv_heads * head_size]: magnitudes of the mixed values, over heads that read the same."""
    mixed = _root_mean_square(inputs.mixed).reshape(a.kv_heads, a.group, a.head_size)
    return np.asarray(np.sqrt(np.square(mixed).mean(axis=1)).reshape(-1))


def _root_mean_square(inputs: NDArray[np.float64]) -> NDArray[np.float64]:
    """[inputs] of inputs [tokens, inputs]"""
    return np.asarray(np.sqrt(np.square(inputs).mean(axis=0)))


def _for_queries(factors: NDArray[np.float32], a: Architecture) -> NDArray[np.float32]:
    """[kv_heads * head_size] -> [heads * head_size]"""
    return factors.reshape(a.kv_heads, 1, a.head_size).repeat(a.group, 1).reshape(-1)


def _in_bytes(tensors: LinearTensors, factors: NDArray[np.float32]) -> LinearTensors:
    """The linear layer in bytes, its weights multiplied by the factors of their inputs."""
    weights = DenseMatrix(tensors.weight.dense() * factors)
    group = _widest_group(len(factors))
    return replace(tensors, weight=quantised(weights, 8, group, centred=False))


def _divided(tensors: LinearTensors, outputs: slice, factors: NDArray[np.float32]) -> LinearTensors:
    """The linear layer with some outputs divided by factors."""
    divisors = np.ones(tensors.weight.shape[0], np.float32)
    divisors[outputs] = factors
    bias = None if tensors.bias is None else tensors.bias / divisors
    return LinearTensors(_scaled(tensors.weight, 1.0 / divisors), bias)


def _scaled(matrix: Matrix, factors: NDArray[np.float32]) -> Matrix:
    """The matrix with each row times its factor."""
    column = factors[:, None]
    if isinstance(matrix, GroupedMatrix):
        return replace(matrix, scale=matrix.scale * column, minimum=matrix.minimum * column)
    return DenseMatrix(matrix.dense() * column)

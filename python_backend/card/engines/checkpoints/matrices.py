"""A matrix of a checkpoint, as it is stored: floating point numbers, or groups of few bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self


class Matrix(Protocol):
    """Weights [outputs, inputs] of a linear layer, or an embedding [vocabulary, hidden]."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def dense(self) -> NDArray[np.float32]:
        """Every weight, [outputs, inputs] float32."""

    def rows(self, chosen: NDArray[np.int64] | slice) -> Self:
        """The matrix of these outputs, in this order."""


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """values  [outputs, inputs] float32; the file may hold them in sixteen bits."""

    values: NDArray[np.float32]

    @property
    def shape(self) -> tuple[int, int]:
        outputs, inputs = self.values.shape
        return outputs, inputs

    def dense(self) -> NDArray[np.float32]:
        return self.values

    def rows(self, chosen: NDArray[np.int64] | slice) -> DenseMatrix:
        return DenseMatrix(self.values[chosen])


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """A weight is scale · code + minimum; consecutive inputs, a group, share scale and minimum.

    codes    [outputs, inputs] uint8, from 0 to 2^bits - 1
    scale    [outputs, groups] float32
    minimum  [outputs, groups] float32
    bits     4 or 8
    """

    codes: NDArray[np.uint8]
    scale: NDArray[np.float32]
    minimum: NDArray[np.float32]
    bits: int

    @property
    def shape(self) -> tuple[int, int]:
        outputs, inputs = self.codes.shape
        return outputs, inputs

    @property
    def group(self) -> int:
        """Inputs of one group."""
        return self.codes.shape[1] // self.scale.shape[1]

    def dense(self) -> NDArray[np.float32]:
        outputs, inputs = self.shape
        codes = self.codes.reshape(outputs, -1, self.group)
        weights: NDArray[np.float32] = codes * self.scale[..., None] + self.minimum[..., None]
        return weights.reshape(outputs, inputs)

    def rows(self, chosen: NDArray[np.int64] | slice) -> GroupedMatrix:
        return GroupedMatrix(
            self.codes[chosen], self.scale[chosen], self.minimum[chosen], self.bits
        )


def stacked(matrices: Sequence[Matrix]) -> Matrix:
    """One matrix of all outputs, one matrix after another.

    It stays grouped where all are, with groups of one size and codes of one number of bits.
    """
    if len(matrices) == 1:
        return matrices[0]
    grouped = [matrix for matrix in matrices if isinstance(matrix, GroupedMatrix)]
    alike = len({(matrix.group, matrix.bits) for matrix in grouped}) == 1
    if len(grouped) < len(matrices) or not alike:
        return DenseMatrix(np.concatenate([matrix.dense() for matrix in matrices]))
    return GroupedMatrix(
        np.concatenate([matrix.codes for matrix in grouped]),
        np.concatenate([matrix.scale for matrix in grouped]),
        np.concatenate([matrix.minimum for matrix in grouped]),
        grouped[0].bits,
    )

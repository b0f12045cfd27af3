"""A matrix of a checkpoint, as it is stored: floating point numbers, groups of few bits, or several
matrices of different kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_BFLOAT16_EXPONENT = 0x7F80
"""All of these bits are set in infinite values and NaN."""

_PART = 1 << 18


class Matrix(Protocol):
    """Weights [outputs, inputs] of a linear layer, or an embedding [vocabulary, hidden]."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def dense(self) -> NDArray[np.float32]:
        """Every weight, [outputs, inputs] float32."""

    def rows(self, chosen: NDArray[np.int64] | slice) -> Matrix:
        """The matrix of these outputs, in this order."""


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """values  [outputs, inputs] float32 or float16; bfloat16, which NumPy lacks, as uint16"""

    values: NDArray[Any]

    @property
    def shape(self) -> tuple[int, int]:
        outputs, inputs = self.values.shape
        return outputs, inputs

    def dense(self) -> NDArray[np.float32]:
        return widened(self.values)

    def rows(self, chosen: NDArray[np.int64] | slice) -> DenseMatrix:
        return DenseMatrix(self.values[chosen])


def widened(values: NDArray[Any]) -> NDArray[np.float32]:
    """The values of a `DenseMatrix` in float32; the array itself if it is float32."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)


def is_finite(values: NDArray[Any]) -> bool:
    """Whether all values of a `DenseMatrix` are finite."""
    if values.dtype != np.uint16:
        return bool(np.isfinite(values).all())
    # Part by part, so that each part stays in the processor's cache.
    return all(
        int((part & _BFLOAT16_EXPONENT).max()) < _BFLOAT16_EXPONENT
        for part in np.array_split(values.reshape(-1), values.size // _PART + 1)
        if part.size
    )


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """A weight is scale · code + minimum. A group of consecutive inputs shares scale and minimum.

    codes    [outputs, inputs] uint8, from 0 to 2^bits - 1
    scale    [outputs, groups] float32
    minimum  [outputs, groups] float32
    bits     from 2 to 8
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

    @property
    def stored_bits(self) -> int:
        """Bits of a code in an engine, 4 or 8."""
        return 4 if self.bits <= 4 else 8

    def zero_points(self) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Whole zero points and remainders, [outputs, groups] both: a weight is scale · (code -
        zero) + remainder.

        Where each group's own zero point leaves a remainder, all zero points are the middle code:
        products by one zero point take less time, and the remainders are multiplied anyway.
        """
        divisor = np.where(self.scale == 0, 1, self.scale)
        most = 2**self.stored_bits - 1
        zeros = np.clip(np.round(-self.minimum / divisor), 0, most).astype(np.float32)
        remainder = self.minimum + zeros * self.scale
        if remainder.any():
            zeros = np.full_like(zeros, 2 ** (self.bits - 1))
            remainder = self.minimum + zeros * self.scale
        return zeros.astype(np.uint8), remainder.astype(np.float32)

    def dense(self) -> NDArray[np.float32]:
        outputs, inputs = self.shape
        codes = self.codes.reshape(outputs, -1, self.group)
        weights: NDArray[np.float32] = codes * self.scale[..., None] + self.minimum[..., None]
        return weights.reshape(outputs, inputs)

    def rows(self, chosen: NDArray[np.int64] | slice) -> GroupedMatrix:
        return GroupedMatrix(
            self.codes[chosen], self.scale[chosen], self.minimum[chosen], self.bits
        )


@dataclass(frozen=True, slots=True)
class JoinedMatrix:
    """The outputs of several matrices, one after another. The matrices differ in groups or bits."""

    parts: tuple[Matrix, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    def dense(self) -> NDArray[np.float32]:
        return np.concatenate([part.dense() for part in self.parts])

    def rows(self, chosen: NDArray[np.int64] | slice) -> Matrix:
        wanted = np.arange(self.shape[0])[chosen]
        bounds = np.cumsum([0, *(part.shape[0] for part in self.parts)])
        owner = np.searchsorted(bounds, wanted, side="right") - 1
        runs = np.split(np.arange(len(wanted)), np.flatnonzero(np.diff(owner)) + 1)
        return stacked(
            [
                self.parts[owner[run[0]]].rows(wanted[run] - bounds[owner[run[0]]])
                for run in runs
                if len(run)
            ]
        )


def stacked(matrices: Sequence[Matrix]) -> Matrix:
    """One matrix of all outputs, one matrix after another.

    The result is grouped if all matrices are, with the same group size and bits; in sixteen bits if
    all have the same such dtype; joined if some are grouped and others differ.
    """
    if len(matrices) == 1:
        return matrices[0]
    dense = [matrix for matrix in matrices if isinstance(matrix, DenseMatrix)]
    if len(dense) == len(matrices):
        if len({matrix.values.dtype for matrix in dense}) == 1:
            return DenseMatrix(np.concatenate([matrix.values for matrix in dense]))
        return DenseMatrix(np.concatenate([matrix.dense() for matrix in matrices]))
    grouped = [matrix for matrix in matrices if isinstance(matrix, GroupedMatrix)]
    alike = len({(matrix.group, matrix.bits) for matrix in grouped}) == 1
    if len(grouped) < len(matrices) or not alike:
        return JoinedMatrix(tuple(matrices))
    return GroupedMatrix(
        np.concatenate([matrix.codes for matrix in grouped]),
        np.concatenate([matrix.scale for matrix in grouped]),
        np.concatenate([matrix.minimum for matrix in grouped]),
        grouped[0].bits,
    )

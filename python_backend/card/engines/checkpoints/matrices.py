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
"""Numbers written at a time. They stay in the processor's cache."""


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


_ZERO = 128
_MOST = 255


def in_bytes(matrix: GroupedMatrix, most_in_group: int) -> GroupedMatrix:
    """The matrix in codes of eight bits with whole zero points.

    A group with codes about a middle code keeps the codes of its largest scale exactly, as
    multiples; other weights move by at most half a step of eight bits.

    most_in_group  most inputs that share a scale; fewer where that does not divide a row
    """
    outputs, inputs = matrix.shape
    together = _together(inputs, matrix.group, most_in_group)
    scale = matrix.scale.reshape(outputs, -1, together)
    minimum = matrix.minimum.reshape(outputs, -1, together)
    wide, zero = _steps(scale, minimum, matrix.bits)
    divisor = np.where(wide == 0, 1, wide)[..., None]
    factor = (scale / divisor).reshape(outputs, -1, 1)
    # A half is added, because a conversion to whole numbers cuts off.
    offset = (minimum / divisor + (zero[..., None] + np.float32(0.5))).reshape(outputs, -1, 1)
    codes = np.empty(matrix.codes.shape, np.uint8)
    rows = max(1, _PART // inputs)
    for at in range(0, outputs, rows):
        part = slice(at, at + rows)
        written = matrix.codes[part].reshape(-1, inputs // matrix.group, matrix.group)
        numbers = written * factor[part] + offset[part]
        codes[part] = np.clip(numbers, 0, _MOST, out=numbers).reshape(-1, inputs)
    return GroupedMatrix(codes, wide, -zero * wide, 8)


def _together(inputs: int, group: int, most: int) -> int:
    """How many groups become one."""
    counts = range(max(1, most // group), 1, -1)
    return next((count for count in counts if inputs % (count * group) == 0), 1)


def _steps(
    scale: NDArray[np.float32], minimum: NDArray[np.float32], bits: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scales and zero points [outputs, wide groups] for groups [outputs, wide groups, groups]."""
    middle = 2 ** (bits - 1)
    if np.array_equal(minimum, np.float32(-middle) * scale):
        largest = np.abs(scale).argmax(axis=-1)[..., None]
        wide = np.take_along_axis(scale, largest, -1)[..., 0] * np.float32(middle / _ZERO)
        return wide, np.full_like(wide, _ZERO)
    ends = minimum, minimum + np.float32(2**bits - 1) * scale
    least = np.minimum(np.minimum(*ends).min(axis=-1), 0)
    wide = (np.maximum(np.maximum(*ends).max(axis=-1), 0) - least) / np.float32(_MOST)
    return wide, np.round(-least / np.where(wide == 0, 1, wide))

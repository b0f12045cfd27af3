"""Codes of few bits written as codes of eight, in groups of more inputs.

An engine reads a byte for a code of five or six bits anyway. A scale in float32 for each group of
16 or 32 would take a bit or two more for each weight.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from card.engines.checkpoints.matrices import GroupedMatrix

_PART = 1 << 18
"""Codes written at a time. They stay in the processor's cache."""
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

"""Rotary position embedding (Su et al., arXiv 2104.09864) with Llama 3's frequency scaling."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from card.engines.architecture import Architecture, RopeScaling


def rotary_tables(architecture: Architecture, positions: int) -> NDArray[np.float32]:
    """[2, positions, 1, head_size]: cosines, then sines with a negated first half.

    With the signs in the table a rotation is ``x * cos + roll(x, head_size / 2) * sin``.
    """
    frequencies = _frequencies(architecture.rope, architecture.head_size)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies[None]
    cosine, sine = np.cos(angles), np.sin(angles)
    tables: NDArray[np.float32] = np.stack(
        [np.concatenate([cosine, cosine], axis=-1), np.concatenate([-sine, sine], axis=-1)]
    )
    return tables[:, :, None]


def _frequencies(rope: RopeScaling, size: int) -> NDArray[np.float32]:
    # The power is rounded once and the rest is float32, as checkpoints were trained.
    exponent = np.arange(0, size, 2).astype(np.float32) / np.float32(size)
    base = np.float32(1.0) / (rope.theta ** exponent.astype(np.float64)).astype(np.float32)
    if rope.divisors:
        base = base / np.array(rope.divisors, np.float32)
    if rope.kind == "linear":
        return base / np.float32(rope.factor)
    if rope.kind == "llama3":
        return _llama3(base, rope)
    return base


def _llama3(base: NDArray[np.float32], rope: RopeScaling) -> NDArray[np.float32]:
    """Long wavelengths are stretched, short ones kept, those between blended."""
    longest = rope.original_context / rope.low_frequency_factor
    shortest = rope.original_context / rope.high_frequency_factor
    wavelength = 2 * math.pi / base
    blend = (rope.original_context / wavelength - rope.low_frequency_factor) / (
        rope.high_frequency_factor - rope.low_frequency_factor
    )
    blended = (1 - blend) * base / rope.factor + blend * base
    stretched = np.where(wavelength > longest, base / rope.factor, base)
    between = (wavelength <= longest) & (wavelength >= shortest)
    return np.where(between, blended, stretched).astype(np.float32)

"""Rotary position embedding (Su et al., arXiv 2104.09864) and its variants for longer texts."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from card.engines.options import MAX_PASS_ROWS
from card.engines.positions import RopeScaling


def rotary_tables(rope: RopeScaling, head_size: int, positions: int) -> NDArray[np.float32]:
    """[2, positions, 1, rotated]: cosines, then sines with a negated first half.

    With the signs in the table a rotation is ``x * cos + roll(x, rotated / 2) * sin``.

    positions  the context of an engine and the rows of a pass; the context chooses ``longrope``'s
               divisors for all texts, so that no row depends on the length of its text
    """
    is_long = positions - MAX_PASS_ROWS > rope.original_context
    frequencies = _frequencies(rope, rope.rotated(head_size), is_long=is_long)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies[None]
    scale = np.float32(rope.scale)
    cosine, sine = np.cos(angles) * scale, np.sin(angles) * scale
    tables: NDArray[np.float32] = np.stack(
        [np.concatenate([cosine, cosine], axis=-1), np.concatenate([-sine, sine], axis=-1)]
    )
    return tables[:, :, None]


def _frequencies(rope: RopeScaling, size: int, *, is_long: bool) -> NDArray[np.float32]:
    # The power is rounded once and the rest is float32, as checkpoints were trained.
    exponent = np.arange(0, size, 2).astype(np.float32) / np.float32(size)
    base = np.float32(1.0) / (rope.theta ** exponent.astype(np.float64)).astype(np.float32)
    divisors = rope.longer if is_long and rope.longer else rope.divisors
    if divisors:
        base = base / np.array(divisors, np.float32)
    if rope.kind == "linear":
        return base / np.float32(rope.factor)
    if rope.kind == "llama3":
        return _llama3(base, rope)
    if rope.kind == "yarn":
        return _yarn(base, rope, size)
    return base


def _yarn(base: NDArray[np.float32], rope: RopeScaling, size: int) -> NDArray[np.float32]:
    """Frequencies of few turns within the original context are stretched, those of many are kept,
    those between are blended."""

    def index(turns: float) -> float:
        ratio = math.log(rope.original_context / (turns * 2 * math.pi))
        return size * ratio / (2 * math.log(rope.theta))

    low, high = index(rope.beta_fast), index(rope.beta_slow)
    if rope.truncates:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    high = high + 0.001 if low == high else high
    stretched = np.clip((np.arange(size // 2, dtype=np.float32) - low) / (high - low), 0, 1)
    blended: NDArray[np.float32] = base / np.float32(rope.factor) * stretched + base * (
        1 - stretched
    )
    return blended.astype(np.float32)


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

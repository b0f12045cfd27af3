"""Rotary position embedding (Su et al., arXiv 2104.09864) with Llama 3's frequency scaling."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from card.engines.torch.architecture import Architecture, RopeScaling


def rotary_tables(architecture: Architecture, positions: int, dtype: torch.dtype) -> Tensor:
    """[2, positions, 1, head_size]: cosines, then sines whose first half is negated.

    With the signs in the table a rotation is ``x * cos + roll(x, head_size / 2) * sin``.
    """
    size = architecture.head_size
    frequencies = _frequencies(architecture.rope, size)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies[None]
    cosine = torch.cat([angles.cos(), angles.cos()], dim=-1)
    sine = torch.cat([-angles.sin(), angles.sin()], dim=-1)
    return torch.stack([cosine, sine]).unsqueeze(2).to(dtype)


def rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate `states` [rows, heads, head_size] by tables [rows, 1, head_size]."""
    return torch.addcmul(states * cosine, states.roll(states.shape[-1] // 2, -1), sine)


def _frequencies(rope: RopeScaling, size: int) -> Tensor:
    exponent = torch.arange(0, size, 2, dtype=torch.int64).to(torch.float32) / size
    base: Tensor = 1.0 / (rope.theta**exponent)
    if rope.kind == "linear":
        return base / rope.factor
    if rope.kind == "llama3":
        return _llama3(base, rope)
    return base


def _llama3(base: Tensor, rope: RopeScaling) -> Tensor:
    """Long wavelengths are stretched, short ones kept, those between blended."""
    longest = rope.original_context / rope.low_frequency_factor
    shortest = rope.original_context / rope.high_frequency_factor
    wavelength = 2 * math.pi / base
    blend = (rope.original_context / wavelength - rope.low_frequency_factor) / (
        rope.high_frequency_factor - rope.low_frequency_factor
    )
    blended = (1 - blend) * base / rope.factor + blend * base
    stretched = torch.where(wavelength > longest, base / rope.factor, base)
    between = (wavelength <= longest) & (wavelength >= shortest)
    return torch.where(between, blended, stretched)

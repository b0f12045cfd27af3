"""Gumbel noise as a pure function of (seed, absolute position, token id).

The noise has no state. So draft and target, plain and speculative runs, and restarted servers
compute the same value. The key goes through chained SplitMix64
streams: the noise of an id is that id's output of the stream which starts at that position's
output of the stream which starts at the mixed seed. A plain xor of the three would let nearby
seeds and positions share noise.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MASK: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB

UNIFORM_BITS: Final = 32
"""The uniform is ``(bits + 1/2) / 2**32``: inside (0, 1), never 0 or 1.

A wider uniform would move no probability by more than 2**-33 and would widen the range of noise:
53 bits reach 37.4 nats, so that nearly every id could still win and would need its noise drawn.
"""

LARGEST_NOISE: Final = -math.log(-math.log1p(-(2.0 ** -(UNIFORM_BITS + 1)))) + 1e-9
"""No noise is larger (22.9 nats; the last term covers the rounding of two logarithms)."""

# Arrays without dimensions spare the conversion of a Python integer at every call.
_step, _first, _second = (np.array(c, np.uint64) for c in (_STEP, _FIRST, _SECOND))
_30, _27, _to_uniform = (np.array(s, np.uint64) for s in (30, 27, 64 - UNIFORM_BITS))


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * _FIRST & _MASK
    z = (z ^ (z >> 27)) * _SECOND & _MASK
    return z ^ (z >> 31)


@lru_cache(maxsize=4096)
def position_key(seed: int, position: int) -> NDArray[np.uint64]:
    """The 64-bit key, shape [], from which the noise of all ids at one position is drawn."""
    key = np.array(_mix((_mix((seed + _STEP) & _MASK) + position * _STEP) & _MASK), np.uint64)
    key.flags.writeable = False
    return key


def uniform_bits(keys: NDArray[np.uint64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Uniform integers below 2**32 for ``ids`` [n] under ``keys`` [n] or []; result [n].

    The upper half of SplitMix64's output without its last step, which would touch one bit of it.
    """
    z = ids.view(np.uint64) * _step
    z += keys
    shifted = z >> _30
    z ^= shifted
    z *= _first
    np.right_shift(z, _27, out=shifted)
    z ^= shifted
    z *= _second
    z >>= _to_uniform
    return z.view(np.int64)


def noise_of(bits: NDArray[np.int64]) -> NDArray[np.float64]:
    """``-log(-log(u))`` of the uniforms with these bits [n]; rises with the bits."""
    u: NDArray[np.float64] = bits + 0.5
    u *= 2.0**-UNIFORM_BITS
    np.log(u, out=u)
    np.negative(u, out=u)
    np.log(u, out=u)
    np.negative(u, out=u)
    return u


def least_bits(noise: float) -> int:
    """A close lower bound of the bits with a noise of at least ``noise``; never too high."""
    if noise > LARGEST_NOISE:
        return 1 << UNIFORM_BITS
    uniform = math.exp(-math.exp(-max(noise, -5.0)))
    return int(uniform * 2.0**UNIFORM_BITS) - 2


def gumbel(seed: int, positions: ArrayLike, ids: ArrayLike) -> NDArray[np.float64]:
    """Noise of every (position, id), broadcast against each other like NumPy's operators.

    Independent standard Gumbel variables for distinct (seed, position, id); at most
    ``LARGEST_NOISE``.
    """
    places = np.asarray(positions, np.int64)
    keys = np.array(
        [position_key(seed, place) for place in places.ravel().tolist()], np.uint64
    ).reshape(places.shape)
    keys, tokens = np.broadcast_arrays(keys, np.asarray(ids, np.int64))
    flat = np.ascontiguousarray(tokens).ravel()
    return noise_of(uniform_bits(keys.ravel(), flat)).reshape(tokens.shape)

"""The blocks of GGUF's quantised types, as codes with a scale and a minimum for each group.

Every function takes the bytes of blocks [outputs, blocks, bytes] and keeps each code of the file.
The layouts are those of llama.cpp's ``ggml-common.h``. A block has 32 weights; a block of a
K-quant, and of IQ4_XS, has 256, and its scales are products of a float16 and a few bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from card.engines.checkpoints.matrices import GroupedMatrix

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.float32]

_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_MXFP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""What codes of four bits stand for. Twice the number in MXFP4."""
_ZERO = 128
"""The code of eight bits that stands for 0."""


def _q8_0(blocks: Bytes) -> GroupedMatrix:
    """A scale, then 32 signed codes. They are stored as unsigned ones, 128 more."""
    return _centred(blocks[..., 2:] ^ np.uint8(_ZERO), _halves(blocks, 0), _ZERO, 8)


def _q4_0(blocks: Bytes) -> GroupedMatrix:
    """A scale, then 32 codes; code 8 stands for 0."""
    return _centred(_nibbles(blocks[..., 2:]), _halves(blocks, 0), 8, 4)


def _q4_1(blocks: Bytes) -> GroupedMatrix:
    """A scale, a minimum, then 32 codes."""
    codes = _nibbles(blocks[..., 4:])
    return _matrix(codes, _halves(blocks, 0), _halves(blocks, 2), 4)


def _q5_0(blocks: Bytes) -> GroupedMatrix:
    """A scale, the fifth bits, then the other bits of 32 codes; code 16 stands for 0."""
    codes = _nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])
    return _centred(codes, _halves(blocks, 0), 16, 5)


def _q5_1(blocks: Bytes) -> GroupedMatrix:
    """A scale, a minimum, the fifth bits, then the other bits of 32 codes."""
    codes = _nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return _matrix(codes, _halves(blocks, 0), _halves(blocks, 2), 5)


def _iq4_nl(blocks: Bytes) -> GroupedMatrix:
    """A scale, then 32 codes, which stand for whole numbers of a table."""
    return _looked_up(_IQ4, _nibbles(blocks[..., 2:]), _halves(blocks, 0))


def _mxfp4(blocks: Bytes) -> GroupedMatrix:
    """An exponent, then 32 floating point numbers of four bits."""
    exponents = blocks[..., 0].astype(np.int32) - 128
    scale = np.ldexp(np.float32(1), exponents).astype(np.float32)
    return _looked_up(_MXFP4, _nibbles(blocks[..., 1:]), scale)


def _q2_k(blocks: Bytes) -> GroupedMatrix:
    """Sixteen bytes of a scale and a minimum, 256 codes of two bits, the factors of both."""
    sizes = blocks[..., :16]
    scale = _halves(blocks, 80)[..., None] * (sizes & 0x0F)
    minimum = _halves(blocks, 82)[..., None] * (sizes >> 4)
    return _matrix(_pairs(blocks[..., 16:80]), scale, -minimum, 2)


def _q3_k(blocks: Bytes) -> GroupedMatrix:
    """The third bits of 256 codes, the other bits, sixteen scales of six bits, their factor; code 4
    stands for 0."""
    upper = _bits(blocks[..., :32], range(8), 1) << np.uint8(2)
    codes = _pairs(blocks[..., 32:96]).reshape(upper.shape) | upper
    low = _bits(blocks[..., 96:104], (0, 4), 0x0F).reshape(*blocks.shape[:2], 16)
    high = _bits(blocks[..., 104:108], (0, 2, 4, 6), 3).reshape(*blocks.shape[:2], 16)
    scale = _halves(blocks, 108)[..., None] * ((low | high << 4).astype(np.float32) - 32)
    return _centred(codes, scale, 4, 3)


def _q4_k(blocks: Bytes) -> GroupedMatrix:
    """The factors of scales and minima, eight of each in six bits, 256 codes."""
    scale, minimum = _scales_and_minima(blocks)
    return _matrix(_nibble_halves(blocks[..., 16:]), scale, minimum, 4)


def _q5_k(blocks: Bytes) -> GroupedMatrix:
    """As Q4_K, with the fifth bits of the codes before the others."""
    scale, minimum = _scales_and_minima(blocks)
    fifth = _bits(blocks[..., 16:48], range(8), 1) << np.uint8(4)
    codes = _nibble_halves(blocks[..., 48:]).reshape(fifth.shape) | fifth
    return _matrix(codes, scale, minimum, 5)


def _q6_k(blocks: Bytes) -> GroupedMatrix:
    """Four lower bits of 256 codes, two upper bits, sixteen scales, their factor; code 32 stands
    for 0."""
    outputs, count, _ = blocks.shape
    low = _bits(blocks[..., :128].reshape(outputs, count, 2, 64), (0, 4), 0x0F)
    upper = _bits(blocks[..., 128:192].reshape(outputs, count, 2, 32), (0, 2, 4, 6), 3)
    high = upper << np.uint8(4)
    codes = low.reshape(high.shape) | high
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
    return _centred(codes, _halves(blocks, 208)[..., None] * scales, 32, 6)


def _iq4_xs(blocks: Bytes) -> GroupedMatrix:
    """The factor of the scales, eight scales of six bits, 256 codes as of IQ4_NL."""
    outputs, count, _ = blocks.shape
    high = _bits(blocks[..., 2:4], (0, 2, 4, 6), 3).swapaxes(-1, -2).reshape(outputs, count, 8)
    low = _bits(blocks[..., 4:8], (0, 4), 0x0F).swapaxes(-1, -2).reshape(outputs, count, 8)
    scale = _halves(blocks, 0)[..., None] * ((low | high << 4).astype(np.float32) - 32)
    codes = _nibbles(blocks[..., 8:].reshape(outputs, count, 8, 16))
    return _looked_up(_IQ4, codes, scale)


GROUPED: dict[str, Callable[[Bytes], GroupedMatrix]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
"""Readers of blocks, by GGUF's name of the type."""


def _matrix(codes: Bytes, scale: Numbers, minimum: Numbers, bits: int) -> GroupedMatrix:
    """The parts of a row in order: codes [outputs, inputs], the others [outputs, groups]."""
    outputs = len(codes)
    return GroupedMatrix(
        codes.reshape(outputs, -1),
        scale.reshape(outputs, -1).astype(np.float32, copy=False),
        minimum.reshape(outputs, -1).astype(np.float32, copy=False),
        bits,
    )


def _centred(codes: Bytes, scale: Numbers, zero: int, bits: int) -> GroupedMatrix:
    """A matrix in which the code `zero` stands for 0."""
    return _matrix(codes, scale, np.float32(-zero) * scale, bits)


def _looked_up(table: tuple[int, ...], codes: Bytes, scale: Numbers) -> GroupedMatrix:
    """A matrix with the table's numbers for codes, in eight bits."""
    numbers = (np.array(table, np.int16) + _ZERO).astype(np.uint8)
    return _centred(numbers[codes], scale, _ZERO, 8)


def _halves(blocks: Bytes, at: int) -> Numbers:
    """The float16 at this byte of every block, [outputs, blocks] float32."""
    found: Numbers = (
        np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float32)
    )
    return found


def _bits(packed: Bytes, shifts: range | tuple[int, ...], mask: int) -> Bytes:
    """[..., shifts, bytes]: the bits at the first shift of all bytes, then those at the next."""
    codes = np.empty((*packed.shape[:-1], len(shifts), packed.shape[-1]), np.uint8)
    for place, shift in enumerate(shifts):
        np.right_shift(packed, shift, out=codes[..., place, :])
    codes &= np.uint8(mask)
    return codes


def _nibbles(packed: Bytes) -> Bytes:
    """The low four bits of all bytes of a block, then the high ones."""
    half = packed.shape[-1]
    codes = np.empty((*packed.shape[:-1], 2 * half), np.uint8)
    np.bitwise_and(packed, 0x0F, out=codes[..., :half])
    np.right_shift(packed, 4, out=codes[..., half:])
    return codes


def _nibble_halves(packed: Bytes) -> Bytes:
    """The codes of Q4_K: each 32 bytes hold two groups, in their low and in their high bits."""
    return _nibbles(packed.reshape(*packed.shape[:2], -1, 32))


def _pairs(packed: Bytes) -> Bytes:
    """The codes of two bits of Q2_K: each 32 bytes hold 128 of them."""
    return _bits(packed.reshape(*packed.shape[:2], -1, 32), (0, 2, 4, 6), 3)


def _fifth_bits(packed: Bytes) -> Bytes:
    """[outputs, blocks, 32], in the place of the fifth bit, of 32 bits in four bytes."""
    return np.unpackbits(packed, axis=-1, bitorder="little") << np.uint8(4)


def _scales_and_minima(blocks: Bytes) -> tuple[Numbers, Numbers]:
    """Of Q4_K and Q5_K, [outputs, blocks, 8] each."""
    first, second, third = (blocks[..., at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([first & 0x3F, third & 0x0F | first >> 2 & 0x30], axis=-1)
    minima = np.concatenate([second & 0x3F, third >> 4 | second >> 2 & 0x30], axis=-1)
    scale = _halves(blocks, 0)[..., None] * scales
    return scale, _halves(blocks, 2)[..., None] * -minima.astype(np.float32)

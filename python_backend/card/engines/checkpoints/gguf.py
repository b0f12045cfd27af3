"""Weights from a GGUF file, checked against the architecture.

Types with blocks of 32 weights stay groups, so that an engine can compute with few bits; other
types are unpacked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from card.engines.architecture import Architecture
from card.engines.checkpoints.matrices import DenseMatrix, GroupedMatrix, Matrix
from card.engines.checkpoints.stored import StoredCheckpoint
from card.engines.interface import EngineError
from model_files import ModelFilesError
from model_files.gguf.configuration import DIVISORS
from model_files.gguf.header import StoredTensor, read_header

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K")
"""Supported types of tensors."""

_GROUP = 32
_LAYER = re.compile(r"blk\.(\d+)\.")
_ROTATION = re.compile(r"blk\.\d+\.attn_rot_embd(\.weight)?")


class GgufCheckpoint(StoredCheckpoint[StoredTensor]):
    """A GGUF file."""

    implied_by = "the file's metadata"
    depth_is = "block_count is"

    def __init__(self, file: Path, architecture: Architecture) -> None:
        try:
            stored = read_header(file).tensors
        except ModelFilesError as error:
            raise EngineError(str(error)) from error
        super().__init__(file, architecture, stored)
        for tensor in stored.values():
            if tensor.kind not in KINDS:
                raise EngineError(
                    f"{file}: {tensor.name} is {tensor.kind}; allowed: {', '.join(KINDS)}"
                )

    @property
    def is_grouped(self) -> bool:
        return any(stored.kind in _GROUPED for stored in self._stored.values())

    def _layer_of(self, own: str) -> int | None:
        found = _LAYER.match(own)
        return None if found is None else int(found[1])

    def _is_idle(self, own: str) -> bool:
        return own in DIVISORS or _ROTATION.fullmatch(own) is not None

    def _order(self, heads: int) -> NDArray[np.int64] | slice:
        a = self._architecture
        if not a.description.rotated_pairs:
            return slice(None)
        rows = np.arange(heads * a.head_size)
        return rows.reshape(heads, a.head_size // 2, 2).swapaxes(1, 2).reshape(-1)

    def _bias(self, name: str, size: int) -> NDArray[np.float32]:
        """The bias; zeros if the file has none."""
        return super()._bias(name, size) if name in self._stored else np.zeros(size, np.float32)

    def _numbers(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        return self._finite(name, _dense(*self._read(name, shape)))

    def _matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        kind, content = self._read(name, shape)
        if kind not in _GROUPED:
            return DenseMatrix(self._finite(name, _dense(kind, content)))
        matrix = _GROUPED[kind](content.reshape(shape[0], shape[1] // _GROUP, -1))
        self._finite(name, matrix.scale)
        self._finite(name, matrix.minimum)
        return matrix

    def _read(self, name: str, shape: tuple[int, ...]) -> tuple[str, NDArray[np.uint8]]:
        """Kind and bytes of a tensor, [outputs, bytes of a row]."""
        stored = self._found(name, shape)
        try:
            content = np.memmap(self._path, np.uint8, "r", stored.offset, (stored.size,))
        except (OSError, ValueError) as error:
            raise EngineError(f"{self._path} cannot be read: {error}") from error
        return stored.kind, content.reshape(*shape[:-1], -1)

    def _finite(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        self._check_finite(name, bool(np.isfinite(values).all()))
        return values


def _dense(kind: str, content: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Every number of a tensor of any kind."""
    # A copy, because numbers of two or four bytes need not lie at multiples of their size.
    with np.errstate(invalid="ignore", over="ignore"):  # checked later, by name
        values: NDArray[np.float32] = dequantize(np.array(content), GGMLQuantizationType[kind])
    return values


def _q8_0(blocks: NDArray[np.uint8]) -> GroupedMatrix:
    """A block: a scale, then 32 signed codes. They are stored as unsigned ones, 128 more."""
    scale = _halves(blocks, 0)
    codes = blocks[..., 2:] ^ np.uint8(128)
    return GroupedMatrix(_in_rows(codes), scale, -128 * scale, 8)


def _q4_0(blocks: NDArray[np.uint8]) -> GroupedMatrix:
    """A block: a scale, then 32 codes; code 8 stands for 0."""
    scale = _halves(blocks, 0)
    return GroupedMatrix(_in_rows(_nibbles(blocks[..., 2:])), scale, -8 * scale, 4)


def _q4_1(blocks: NDArray[np.uint8]) -> GroupedMatrix:
    """A block: a scale, a minimum, then 32 codes."""
    codes = _in_rows(_nibbles(blocks[..., 4:]))
    return GroupedMatrix(codes, _halves(blocks, 0), _halves(blocks, 2), 4)


_GROUPED: dict[str, Callable[[NDArray[np.uint8]], GroupedMatrix]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
}


def _halves(blocks: NDArray[np.uint8], at: int) -> NDArray[np.float32]:
    """The float16 at this byte of every block, [outputs, groups] float32."""
    found: NDArray[np.float32] = (
        np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float32)
    )
    return found


def _nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The low four bits of all bytes of a block, then the high ones."""
    half = packed.shape[-1]
    codes = np.empty((*packed.shape[:-1], 2 * half), np.uint8)
    np.bitwise_and(packed, 0x0F, out=codes[..., :half])
    np.right_shift(packed, 4, out=codes[..., half:])
    return codes


def _in_rows(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[outputs, groups, 32] to [outputs, inputs]"""
    return codes.reshape(codes.shape[0], -1)

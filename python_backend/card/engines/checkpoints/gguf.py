"""Weights from a GGUF file, checked against the architecture.

Quantised types stay groups of codes, so that an engine can compute with few bits.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from card.engines.architecture import Architecture
from card.engines.checkpoints.blocks import GROUPED
from card.engines.checkpoints.matrices import DenseMatrix, Matrix, is_finite
from card.engines.checkpoints.stored import StoredCheckpoint
from card.engines.interface import EngineError
from model_files import ModelFilesError
from model_files.gguf.configuration import DIVISORS
from model_files.gguf.header import StoredTensor
from model_files.gguf.parts import read_model

KINDS = ("F32", "F16", "BF16", *GROUPED)
"""Supported types of tensors."""

_TWO_BYTES = {"F16": "<f2", "BF16": "<u2"}
"""As `DenseMatrix` holds them."""
_LAYER = re.compile(r"blk\.(\d+)\.")
_ROTATION = re.compile(r"blk\.\d+\.attn_rot_embd(\.weight)?")


class GgufCheckpoint(StoredCheckpoint[StoredTensor]):
    """A GGUF file, or several with parts of a model."""

    implied_by = "the file's metadata"
    depth_is = "block_count is"

    def __init__(self, file: Path, architecture: Architecture) -> None:
        try:
            stored = read_model(file).tensors
        except ModelFilesError as error:
            raise EngineError(str(error)) from error
        super().__init__(file, architecture, stored)
        for tensor in stored.values():
            if tensor.kind not in KINDS:
                raise EngineError(
                    f"{tensor.file}: {tensor.name} is {tensor.kind}; allowed: {', '.join(KINDS)}"
                )

    @property
    def is_grouped(self) -> bool:
        return any(stored.kind in GROUPED for stored in self._stored.values())

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
        if kind not in GROUPED:
            values = _of_two_bytes(kind, content) if kind in _TWO_BYTES else _dense(kind, content)
            self._check_finite(name, is_finite(values))
            return DenseMatrix(values)
        _, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        with np.errstate(invalid="ignore", over="ignore"):  # checked here, by name
            matrix = GROUPED[kind](content.reshape(shape[0], -1, size))
        self._finite(name, matrix.scale)
        self._finite(name, matrix.minimum)
        return matrix

    def _read(self, name: str, shape: tuple[int, ...]) -> tuple[str, NDArray[np.uint8]]:
        """Kind and bytes of a tensor, [outputs, bytes of a row]."""
        stored = self._found(name, shape)
        try:
            content = np.memmap(stored.file, np.uint8, "r", stored.offset, (stored.size,))
        except (OSError, ValueError) as error:
            raise EngineError(f"{stored.file} cannot be read: {error}") from error
        return stored.kind, content.reshape(*shape[:-1], -1)

    def _finite(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        self._check_finite(name, bool(np.isfinite(values).all()))
        return values


def _of_two_bytes(kind: str, content: NDArray[np.uint8]) -> NDArray[Any]:
    """The numbers of a tensor as they are stored."""
    return np.array(content).view(_TWO_BYTES[kind])  # a copy: see `_dense`


def _dense(kind: str, content: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Every number of a tensor of any kind."""
    # A copy, because numbers of two or four bytes need not lie at multiples of their size.
    with np.errstate(invalid="ignore", over="ignore"):  # checked later, by name
        values: NDArray[np.float32] = dequantize(np.array(content), GGMLQuantizationType[kind])
    return values

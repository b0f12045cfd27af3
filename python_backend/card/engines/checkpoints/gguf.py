"""Weights from a GGUF file, checked against the architecture.

Types of 32 weights a block stay groups, so that an engine can compute with few bits; the others are
unpacked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from card.engines.architecture import Architecture
from card.engines.checkpoints.matrices import DenseMatrix, GroupedMatrix, Matrix, stacked
from card.engines.checkpoints.tensors import (
    LayerTensors,
    LinearTensors,
    required_tensors,
    stored_as,
    unknown_tensor,
)
from card.engines.interface import EngineError
from model_files import ModelFilesError
from model_files.gguf.configuration import FREQUENCY_DIVISORS
from model_files.gguf.header import StoredTensor, read_header

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K")
"""Types of tensors that are read."""
ROTATED_PAIRS = ("llama", "mistral")
"""Families whose rows of query and key llama.cpp reorders: it rotates neighbours, where the decoder
rotates a number of a head's first half with one of its second."""

_GROUP = 32
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_IN_LAYER = re.compile(
    r"(attn_norm|ffn_norm)\.weight|(attn_q|attn_k|attn_v|attn_output|ffn_gate|ffn_up|ffn_down)"
    r"\.(weight|bias)|attn_rot_embd(\.weight)?"
)
_IN_LAYER_WITH_NORMS = re.compile(_IN_LAYER.pattern + r"|(attn_q_norm|attn_k_norm)\.weight")
_OUTSIDE = ("token_embd.weight", "output_norm.weight", "output.weight", FREQUENCY_DIVISORS)


class GgufCheckpoint:
    """Implements `tensors.Checkpoint`."""

    def __init__(self, file: Path, architecture: Architecture) -> None:
        self._file = file
        self._architecture = architecture
        try:
            self._stored = read_header(file).tensors
        except ModelFilesError as error:
            raise EngineError(str(error)) from error
        for tensor in self._stored.values():
            self._check_known(tensor)
        self._check_complete()

    @property
    def values(self) -> int:
        return sum(math.prod(stored.shape) for stored in self._stored.values())

    @property
    def matrices_are(self) -> str:
        found = {stored.kind for stored in self._stored.values() if len(stored.shape) > 1}
        return found.pop() if len(found) == 1 else "mixed"

    @property
    def is_grouped(self) -> bool:
        return any(stored.kind in _GROUPED for stored in self._stored.values())

    def embedding(self) -> Matrix:
        a = self._architecture
        return self._matrix("token_embd.weight", (a.vocabulary, a.hidden))

    def head(self) -> Matrix | None:
        a = self._architecture
        if a.tied_embeddings:
            return None
        return self._matrix("output.weight", (a.vocabulary, a.hidden))

    def final_norm(self) -> NDArray[np.float32]:
        return self._vector("output_norm.weight", self._architecture.hidden)

    def layers(self) -> Iterator[LayerTensors]:
        return (self._layer(index) for index in range(self._architecture.layers))

    def _check_known(self, tensor: StoredTensor) -> None:
        """A tensor that nobody uses changes what the model computes."""
        a, found = self._architecture, _LAYER.fullmatch(tensor.name)
        if found is None:
            known = tensor.name in _OUTSIDE
        else:
            names = _IN_LAYER_WITH_NORMS if a.query_key_norm else _IN_LAYER
            known = names.fullmatch(found[2]) is not None
        if not known:
            raise unknown_tensor(self._file, tensor.name, a)
        if found is not None and int(found[1]) >= a.layers:
            raise EngineError(
                f"{self._file}: the weights have a layer {found[1]} (counted from 0), but "
                f"block_count is {a.layers}; the two do not belong together"
            )
        if tensor.kind not in KINDS:
            raise EngineError(
                f"{self._file}: {tensor.name} is {tensor.kind}; allowed: {', '.join(KINDS)}"
            )

    def _check_complete(self) -> None:
        """What lacks a tensor is refused before anything of it is read."""
        for name, shape in required_tensors(self._architecture).items():
            self._found(f"{name}.weight", shape)

    def _found(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        return stored_as(self._file, self._stored, name, shape, "the file's metadata")

    def _layer(self, index: int) -> LayerTensors:
        a, name = self._architecture, f"blk.{index}"
        query, key_value = a.heads * a.head_size, a.kv_heads * a.head_size
        return LayerTensors(
            input_norm=self._vector(f"{name}.attn_norm.weight", a.hidden),
            query_key_value=self._linear(
                [
                    (f"{name}.attn_q", query, self._order(a.heads)),
                    (f"{name}.attn_k", key_value, self._order(a.kv_heads)),
                    (f"{name}.attn_v", key_value, slice(None)),
                ],
                a.hidden,
            ),
            query_norm=self._head_norm(f"{name}.attn_q_norm.weight"),
            key_norm=self._head_norm(f"{name}.attn_k_norm.weight"),
            output=self._linear([(f"{name}.attn_output", a.hidden, slice(None))], query),
            post_norm=self._vector(f"{name}.ffn_norm.weight", a.hidden),
            gate_up=self._linear(
                [(f"{name}.ffn_{part}", a.intermediate, slice(None)) for part in ("gate", "up")],
                a.hidden,
            ),
            down=self._linear([(f"{name}.ffn_down", a.hidden, slice(None))], a.intermediate),
        )

    def _order(self, heads: int) -> NDArray[np.int64] | slice:
        """Where the rows of query or key lie in the file, in the order that the decoder wants."""
        a = self._architecture
        if a.family not in ROTATED_PAIRS:
            return slice(None)
        rows = np.arange(heads * a.head_size)
        return rows.reshape(heads, a.head_size // 2, 2).swapaxes(1, 2).reshape(-1)

    def _head_norm(self, name: str) -> NDArray[np.float32] | None:
        a = self._architecture
        return self._vector(name, a.head_size) if a.query_key_norm else None

    def _linear(
        self, parts: list[tuple[str, int, NDArray[np.int64] | slice]], inputs: int
    ) -> LinearTensors:
        """Linear layers that share their input, stacked into one, each with its rows in order."""
        weight = stacked(
            [self._matrix(f"{n}.weight", (rows, inputs)).rows(order) for n, rows, order in parts]
        )
        if not any(f"{name}.bias" in self._stored for name, _, _ in parts):
            return LinearTensors(weight)
        biases = [self._bias(f"{name}.bias", rows)[order] for name, rows, order in parts]
        return LinearTensors(weight, np.concatenate(biases))

    def _bias(self, name: str, size: int) -> NDArray[np.float32]:
        """Of layers that share their input some may have none."""
        return self._vector(name, size) if name in self._stored else np.zeros(size, np.float32)

    def _vector(self, name: str, size: int) -> NDArray[np.float32]:
        return self._finite(name, _dense(*self._read(name, (size,))))

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
            content = np.memmap(self._file, np.uint8, "r", stored.offset, (stored.size,))
        except (OSError, ValueError) as error:
            raise EngineError(f"{self._file} cannot be read: {error}") from error
        return stored.kind, content.reshape(*shape[:-1], -1)

    def _finite(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        if not np.isfinite(values).all():
            raise EngineError(f"{self._file}: {name} holds values that are not finite")
        return values


def _dense(kind: str, content: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Every number of a tensor of any kind."""
    # A copy, because numbers of two or four bytes need not lie at multiples of their size.
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is refused by name
        values: NDArray[np.float32] = dequantize(np.array(content), GGMLQuantizationType[kind])
    return values


def _q8_0(blocks: NDArray[np.uint8]) -> GroupedMatrix:
    """A block: a scale, then 32 signed codes. They are stored as unsigned ones, 128 more."""
    scale = _halves(blocks, 0)
    codes = blocks[..., 2:] ^ np.uint8(128)
    return GroupedMatrix(_in_rows(codes), scale, -128 * scale, 8)


def _q4_0(blocks: NDArray[np.uint8]) -> GroupedMatrix:
    """A block: a scale, then 32 codes of which 8 means nothing."""
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

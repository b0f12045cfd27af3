"""Weights from safetensors, checked against the architecture.

Only safetensors is read: no pickle, no code from a checkpoint.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from card.engines.architecture import Architecture
from card.engines.checkpoints.matrices import DenseMatrix, stacked
from card.engines.checkpoints.tensors import LayerTensors, LinearTensors
from card.engines.interface import EngineError
from model_files.json_file import JsonFileError, read_json_object
from model_files.regular_file import is_irregular

_STORED: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


_LAYER = re.compile(r"model\.layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where a tensor lies in its file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int


class SafetensorsCheckpoint:
    """Implements `tensors.Checkpoint` over the safetensors files of a Hugging Face directory."""

    def __init__(self, directory: Path, architecture: Architecture) -> None:
        self._directory = directory
        self._architecture = architecture
        self._stored = {name: stored for file in self._files() for name, stored in _read(file)}
        self._check_depth()

    @property
    def values(self) -> int:
        return sum(math.prod(stored.shape) for stored in self._stored.values())

    @property
    def matrices_are(self) -> str:
        found = {stored.dtype for stored in self._stored.values() if len(stored.shape) > 1}
        return found.pop() if len(found) == 1 else "mixed"

    @property
    def is_grouped(self) -> bool:
        return False

    def embedding(self) -> DenseMatrix:
        a = self._architecture
        return DenseMatrix(self._tensor("model.embed_tokens.weight", (a.vocabulary, a.hidden)))

    def head(self) -> DenseMatrix | None:
        a = self._architecture
        if a.tied_embeddings:
            return None
        return DenseMatrix(self._tensor("lm_head.weight", (a.vocabulary, a.hidden)))

    def final_norm(self) -> NDArray[np.float32]:
        return self._tensor("model.norm.weight", (self._architecture.hidden,))

    def layers(self) -> Iterator[LayerTensors]:
        return (self._layer(index) for index in range(self._architecture.layers))

    def _check_depth(self) -> None:
        """A model cut off behind some layers would load, and write nonsense."""
        known = self._architecture.layers
        stored = {int(found[1]) for name in self._stored if (found := _LAYER.match(name))}
        if beyond := sorted(layer for layer in stored if layer >= known):
            raise EngineError(
                f"{self._directory}: the weights have a layer {beyond[0]} (counted from 0), but "
                f"config.json says num_hidden_layers {known}; the two do not belong together"
            )

    def _layer(self, index: int) -> LayerTensors:
        a, name = self._architecture, f"model.layers.{index}"
        query, key_value = a.heads * a.head_size, a.kv_heads * a.head_size
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        return LayerTensors(
            input_norm=self._tensor(f"{name}.input_layernorm.weight", (a.hidden,)),
            query_key_value=self._linear(
                [
                    (f"{attention}.q_proj", query),
                    (f"{attention}.k_proj", key_value),
                    (f"{attention}.v_proj", key_value),
                ],
                a.hidden,
            ),
            query_norm=self._head_norm(f"{attention}.q_norm.weight"),
            key_norm=self._head_norm(f"{attention}.k_norm.weight"),
            output=self._linear([(f"{attention}.o_proj", a.hidden)], query),
            post_norm=self._tensor(f"{name}.post_attention_layernorm.weight", (a.hidden,)),
            gate_up=self._linear(
                [(f"{mlp}.gate_proj", a.intermediate), (f"{mlp}.up_proj", a.intermediate)],
                a.hidden,
            ),
            down=self._linear([(f"{mlp}.down_proj", a.hidden)], a.intermediate),
        )

    def _head_norm(self, name: str) -> NDArray[np.float32] | None:
        a = self._architecture
        return self._tensor(name, (a.head_size,)) if a.query_key_norm else None

    def _linear(self, parts: list[tuple[str, int]], inputs: int) -> LinearTensors:
        """Linear layers that share their input, stacked into one."""
        weight = stacked(
            [DenseMatrix(self._tensor(f"{n}.weight", (rows, inputs))) for n, rows in parts]
        )
        if not any(f"{name}.bias" in self._stored for name, _ in parts):
            return LinearTensors(weight)
        return LinearTensors(
            weight, np.concatenate([self._tensor(f"{n}.bias", (rows,)) for n, rows in parts])
        )

    def _tensor(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        stored = self._stored.get(name)
        if stored is None:
            raise EngineError(f"{self._directory}: tensor {name!r} is missing")
        if stored.shape != shape:
            raise EngineError(
                f"{self._directory}: {name} has shape {stored.shape}, config.json implies {shape}"
            )
        if stored.dtype not in _STORED:
            raise EngineError(
                f"{self._directory}: {name} is {stored.dtype}; "
                f"quantised checkpoints are not supported"
            )
        raw: NDArray[Any] = np.memmap(stored.file, _STORED[stored.dtype], "r", stored.offset, shape)
        found: NDArray[np.float32] = (
            (raw.astype(np.uint32) << 16).view(np.float32)
            if stored.dtype == "BF16"
            else raw.astype(np.float32)
        )
        if not np.isfinite(found).all():
            raise EngineError(f"{self._directory}: {name} holds values that are not finite")
        return found

    def _files(self) -> list[Path]:
        files = sorted(self._directory.glob("*.safetensors"))
        if not files:
            raise EngineError(f"{self._directory} holds no *.safetensors file")
        index = self._directory / "model.safetensors.index.json"
        if index.exists():
            try:
                wanted = set(read_json_object(index)["weight_map"].values())
            except (JsonFileError, KeyError, TypeError, AttributeError) as error:
                raise EngineError(f"{index} cannot be read: {error!r}") from error
            missing = sorted(wanted - {file.name for file in files})
            if missing:
                raise EngineError(
                    f"{self._directory} lacks {', '.join(missing)} named in {index.name}"
                )
        return files


def _read(file: Path) -> list[tuple[str, _Stored]]:
    """What a file holds. NumPy knows no bfloat16, so tensors are read by their place."""
    if is_irregular(file):
        raise EngineError(f"{file} is no regular file")
    try:
        with safe_open(file, framework="np"):
            pass  # offsets and sizes are sound
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(length))
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise EngineError(f"{file} is not a sound safetensors file: {error}") from error
    header.pop("__metadata__", None)
    return [
        (
            name,
            _Stored(
                file, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0]
            ),
        )
        for name, entry in header.items()
    ]

"""Weights from safetensors, checked against the architecture.

Only safetensors is read: no pickle, no code from a checkpoint.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from card.engines.architecture import Architecture
from card.engines.checkpoints.matrices import DenseMatrix, is_finite, stacked, widened
from card.engines.checkpoints.tensors import (
    LayerTensors,
    LinearTensors,
    required_tensors,
    stored_as,
    unknown_tensor,
)
from card.engines.interface import EngineError
from card.engines.quantised import check_tensor_not_quantised
from model_files.json_file import JsonFileError, is_irregular, read_json_object

_STORED: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}

INDEX = "model.safetensors.index.json"
"""Says which tensor lies in which file, where a checkpoint has several."""

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Hugging Face's name for what GGUF calls otherwise."""
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_IN_LAYER = re.compile(
    r"(input_layernorm|post_attention_layernorm)\.weight|self_attn\.rotary_emb\.inv_freq"
    r"|(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)\.(weight|bias)"
)
_IN_LAYER_WITH_NORMS = re.compile(_IN_LAYER.pattern + r"|self_attn\.[qk]_norm\.weight")
_OUTSIDE = (
    *("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"),
    "model.rotary_emb.inv_freq",  # which the configuration says too
)


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
        self._stored = _stored_in(directory)
        for name, stored in self._stored.items():
            check_tensor_not_quantised(directory, name, stored.dtype)
        for name in self._stored:
            self._check_known(name)
        self._check_depth()
        self._check_complete()

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
        return DenseMatrix(self._stored_as("model.embed_tokens.weight", (a.vocabulary, a.hidden)))

    def head(self) -> DenseMatrix | None:
        a = self._architecture
        if a.tied_embeddings:
            return None
        return DenseMatrix(self._stored_as("lm_head.weight", (a.vocabulary, a.hidden)))

    def final_norm(self) -> NDArray[np.float32]:
        return self._tensor("model.norm.weight", (self._architecture.hidden,))

    def layers(self) -> Iterator[LayerTensors]:
        return (self._layer(index) for index in range(self._architecture.layers))

    def _check_known(self, name: str) -> None:
        """Raises `EngineError` on a tensor of the decoder that nobody uses."""
        a, found = self._architecture, _LAYER.match(name)
        if found is not None:
            names = _IN_LAYER_WITH_NORMS if a.query_key_norm else _IN_LAYER
            known = names.fullmatch(name, found.end()) is not None
        else:
            known = name in _OUTSIDE or not name.startswith(("model.", "lm_head."))
        if not known:
            raise unknown_tensor(self._directory, name, a)

    def _check_complete(self) -> None:
        """What lacks a tensor is refused before anything of it is read."""
        for name, shape in required_tensors(self._architecture).items():
            *layer, part = name.removeprefix("blk.").split(".")
            above = f"model.layers.{layer[0]}." if layer else ""
            self._found(f"{above}{_NAMES[part]}.weight", shape)

    def _found(self, name: str, shape: tuple[int, ...]) -> _Stored:
        return stored_as(self._directory, self._stored, name, shape, "config.json")

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
            [DenseMatrix(self._stored_as(f"{n}.weight", (rows, inputs))) for n, rows in parts]
        )
        if not any(f"{name}.bias" in self._stored for name, _ in parts):
            return LinearTensors(weight)
        return LinearTensors(
            weight, np.concatenate([self._tensor(f"{n}.bias", (rows,)) for n, rows in parts])
        )

    def _tensor(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        return widened(self._stored_as(name, shape))

    def _stored_as(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """A tensor in the dtype of its file, as `DenseMatrix` holds it."""
        stored = self._found(name, shape)
        if stored.dtype not in _STORED:
            raise EngineError(
                f"{self._directory}: {name} is {stored.dtype}; "
                f"quantised checkpoints are not supported"
            )
        count = math.prod(shape)
        found = np.fromfile(stored.file, _STORED[stored.dtype], count, offset=stored.offset)
        if not is_finite(found):
            raise EngineError(f"{self._directory}: {name} holds values that are not finite")
        return found.reshape(shape)


def weight_files(directory: Path) -> list[Path]:
    """The files that belong to the checkpoint of a Hugging Face directory. Raises `EngineError`."""
    index = _index(directory)
    return _files(directory, index)


def _files(directory: Path, index: Mapping[str, str] | None) -> list[Path]:
    if index is not None:
        files = [directory / name for name in sorted(set(index.values()))]
        if missing := [file.name for file in files if not file.exists()]:
            raise EngineError(f"{directory} lacks {', '.join(missing)} named in {INDEX}")
        return files
    whole = directory / "model.safetensors"
    # Beside a whole model others are adapters, or the same weights under other names.
    files = [whole] if whole.exists() else sorted(directory.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{directory} holds no *.safetensors file{_hint(directory)}")
    return files


def _hint(directory: Path) -> str:
    found = next(directory.glob("*.gguf"), None)
    return "" if found is None else f"; name its GGUF file, {found}, if that is the model"


def _index(directory: Path) -> dict[str, str] | None:
    """The name of the file that each tensor lies in; None: nothing says so."""
    file = directory / INDEX
    if not file.exists():
        return None
    try:
        index = read_json_object(file)["weight_map"]
        sound = all(Path(name).name == name for name in index.values())
    except (JsonFileError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"{file} cannot be read: {error!r}") from error
    if not index or not sound:
        raise EngineError(f"{file} must name a file beside it for each tensor")
    return dict(index)


def _stored_in(directory: Path) -> dict[str, _Stored]:
    """Every tensor of the checkpoint: with an index, those that it names where it says; files
    beside may be left over from another."""
    index = _index(directory)
    found: dict[str, _Stored] = {}
    for file in _files(directory, index):
        for name, stored in _read(file):
            if index is not None and index.get(name) != file.name:
                continue
            if name in found:
                raise EngineError(
                    f"{directory}: tensor {name!r} lies in {found[name].file.name} and in "
                    f"{file.name}; take away the file that is left over, or write {INDEX}"
                )
            found[name] = stored
    if index is not None and (missing := sorted(index.keys() - found.keys())):
        raise EngineError(
            f"{directory / index[missing[0]]} lacks {missing[0]!r}, which {INDEX} names"
        )
    return found


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

"""Weights from safetensors, checked against the architecture.

Only safetensors is read: no pickle, no code from a checkpoint.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from card.engines.architecture import Architecture
from card.engines.checkpoints.matrices import DenseMatrix, is_finite, widened
from card.engines.checkpoints.stored import StoredCheckpoint
from card.engines.interface import EngineError
from card.engines.quantised import check_tensor_not_quantised
from model_files.json_file import JsonFileError, is_irregular, read_json_object
from model_files.not_models import kind_of

_STORED: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}

INDEX = "model.safetensors.index.json"
"""The index: names the file of each tensor, for a checkpoint of several files."""

_MOST_HEADER_BYTES = 16 << 20
"""A tensor takes about 120 bytes of it."""

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
"""Hugging Face's names by GGUF's names, in Llama's decoder."""
_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_FREQUENCIES = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


@dataclass(frozen=True, slots=True)
class _Stored:
    """The place of a tensor in its file."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    offset: int


class SafetensorsCheckpoint(StoredCheckpoint[_Stored]):
    """The safetensors files of a Hugging Face directory."""

    implied_by = "config.json"
    depth_is = "config.json says num_hidden_layers"
    norms_may_lack_one = True

    def __init__(self, directory: Path, architecture: Architecture) -> None:
        found = _stored_in(directory)
        for name, stored in found.items():
            check_tensor_not_quantised(directory, name, stored.kind)
        family = architecture.description
        self._names = {**_NAMES, **(_FUSED if family.fused else {}), **family.names}
        super().__init__(directory, architecture, found)

    def _own(self, name: str) -> str:
        *layer, part, suffix = name.removeprefix("blk.").split(".")
        above = f"model.layers.{layer[0]}." if layer else ""
        return f"{above}{self._names[part]}.{suffix}"

    def _layer_of(self, own: str) -> int | None:
        found = _LAYER.match(own)
        return None if found is None else int(found[1])

    def _is_idle(self, own: str) -> bool:
        """Whether the decoder needs no such tensor: frequencies come from the configuration."""
        decodes = own.startswith(("model.", "lm_head."))
        return not decodes or _FREQUENCIES.fullmatch(own) is not None

    def _numbers(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        return widened(self._read(name, shape))

    def _matrix(self, name: str, shape: tuple[int, int]) -> DenseMatrix:
        return DenseMatrix(self._read(name, shape))

    def _read(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """A tensor in the dtype of its file, as `DenseMatrix` holds it."""
        stored = self._found(name, shape)
        if stored.kind not in _STORED:
            raise EngineError(
                f"{self._path}: {self._own(name)} is {stored.kind}; "
                f"quantised checkpoints are not supported"
            )
        count = math.prod(shape)
        found = np.fromfile(stored.file, _STORED[stored.kind], count, offset=stored.offset)
        self._check_finite(name, is_finite(found))
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
    # Other files beside a whole model are adapters, or the same weights under other names.
    files = [whole] if whole.exists() else sorted(directory.glob("*.safetensors"))
    if [file.name for file in files] == ["adapter_model.safetensors"]:
        raise EngineError(
            f"{directory} holds an adapter (LoRA) and no weights of a model; merge the two, and "
            "name the directory that this writes"
        )
    if not files:
        raise EngineError(f"{directory} holds no *.safetensors file{_hint(directory)}")
    return files


def _hint(directory: Path) -> str:
    found = next(directory.glob("*.gguf"), None)
    return "" if found is None else f"; name its GGUF file, {found}, if that is the model"


def _index(directory: Path) -> dict[str, str] | None:
    """The name of each tensor's file; None: there is no index."""
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
    """Every tensor of the checkpoint. With an index, only its tensors in its files: other files may
    be left over from another checkpoint."""
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
    """The tensors of a file and their places; tensors are read by place, because NumPy lacks
    bfloat16."""
    if is_irregular(file):
        raise EngineError(f"{file} is no regular file")
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > _MOST_HEADER_BYTES:
                raise ValueError(
                    f"its header has {length} bytes; allowed: at most {_MOST_HEADER_BYTES}"
                )
            with safe_open(file, framework="np"):
                pass  # offsets and sizes are sound
            header = json.loads(opened.read(length))
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        if kind := kind_of(file):
            raise EngineError(f"{file} is {kind}") from error
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

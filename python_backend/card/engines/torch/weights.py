"""Weights from safetensors, checked against the architecture, as the decoder wants them.

Only safetensors is read: no pickle, no code from a checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from card.engines.interface import EngineError
from card.engines.torch.architecture import Architecture
from card.engines.torch.linear import Linear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; query, key and value are one linear layer, gate and up another.

    Norm weights stand twice in a row, see `decoder.rms_norm`.
    """

    input_norm: Tensor
    query_key_value: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Linear


def load_weights(directory: Path, architecture: Architecture, dtype: torch.dtype) -> Weights:
    """Load every tensor the decoder uses. Raises `EngineError` on files that do not fit."""
    checkpoint = _Checkpoint(directory, dtype)
    a = architecture
    query, key_value = a.heads * a.head_size, a.kv_heads * a.head_size
    layers = []
    for index in range(a.layers):
        attention = f"model.layers.{index}.self_attn"
        mlp = f"model.layers.{index}.mlp"
        layers.append(
            LayerWeights(
                input_norm=checkpoint.norm(
                    f"model.layers.{index}.input_layernorm.weight", a.hidden
                ),
                query_key_value=checkpoint.linear(
                    [
                        (f"{attention}.q_proj", query),
                        (f"{attention}.k_proj", key_value),
                        (f"{attention}.v_proj", key_value),
                    ],
                    a.hidden,
                ),
                query_norm=checkpoint.norm(f"{attention}.q_norm.weight", a.head_size)
                if a.query_key_norm
                else None,
                key_norm=checkpoint.norm(f"{attention}.k_norm.weight", a.head_size)
                if a.query_key_norm
                else None,
                output=checkpoint.linear([(f"{attention}.o_proj", a.hidden)], query),
                post_norm=checkpoint.norm(
                    f"model.layers.{index}.post_attention_layernorm.weight", a.hidden
                ),
                gate_up=checkpoint.linear(
                    [(f"{mlp}.gate_proj", a.intermediate), (f"{mlp}.up_proj", a.intermediate)],
                    a.hidden,
                ),
                down=checkpoint.linear([(f"{mlp}.down_proj", a.hidden)], a.intermediate),
            )
        )
    embedding = checkpoint.tensor("model.embed_tokens.weight", (a.vocabulary, a.hidden))
    head = (
        embedding
        if a.tied_embeddings
        else checkpoint.tensor("lm_head.weight", (a.vocabulary, a.hidden))
    )
    return Weights(
        embedding=embedding,
        layers=layers,
        norm=checkpoint.norm("model.norm.weight", a.hidden),
        head=Linear(head),
    )


class _Checkpoint:
    """Tensors by name over one or several safetensors files."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        self._directory = directory
        self._dtype = dtype
        self._file_of = self._index()

    def _index(self) -> dict[str, Path]:
        files = sorted(self._directory.glob("*.safetensors"))
        if not files:
            raise EngineError(f"{self._directory} holds no *.safetensors file")
        index = self._directory / "model.safetensors.index.json"
        if index.exists():
            try:
                wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise EngineError(f"{index} cannot be read: {error!r}") from error
            missing = sorted(wanted - {file.name for file in files})
            if missing:
                raise EngineError(
                    f"{self._directory} lacks {', '.join(missing)} named in {index.name}"
                )
        found: dict[str, Path] = {}
        for file in files:
            try:
                with safe_open(file, framework="pt") as opened:
                    found.update(dict.fromkeys(opened.keys(), file))
            except (SafetensorError, OSError) as error:
                raise EngineError(f"{file} is not a sound safetensors file: {error}") from error
        return found

    def has(self, name: str) -> bool:
        return name in self._file_of

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor `name`, converted to the engine's dtype."""
        if name not in self._file_of:
            raise EngineError(f"{self._directory}: tensor {name!r} is missing")
        try:
            with safe_open(self._file_of[name], framework="pt") as opened:
                tensor: Tensor = opened.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise EngineError(f"{self._file_of[name]}: {name} cannot be read: {error}") from error
        if tuple(tensor.shape) != shape:
            raise EngineError(
                f"{self._directory}: {name} has shape {tuple(tensor.shape)}, "
                f"config.json implies {shape}"
            )
        if not tensor.is_floating_point():
            raise EngineError(
                f"{self._directory}: {name} is {tensor.dtype}; "
                f"quantised checkpoints are not supported"
            )
        if not torch.isfinite(tensor).all():
            raise EngineError(f"{self._directory}: {name} holds values that are not finite")
        return tensor.to(self._dtype).contiguous()

    def norm(self, name: str, size: int) -> Tensor:
        """A norm's weight twice over, as `decoder.rms_norm` wants it, [2 * size]."""
        return self.tensor(name, (size,)).repeat(2)

    def linear(self, parts: list[tuple[str, int]], inputs: int) -> Linear:
        """Linear layers that share their input, stacked into one."""
        weight = torch.cat([self.tensor(f"{n}.weight", (rows, inputs)) for n, rows in parts])
        if not any(self.has(f"{name}.bias") for name, _ in parts):
            return Linear(weight)
        return Linear(weight, torch.cat([self.tensor(f"{n}.bias", (rows,)) for n, rows in parts]))

"""A checkpoint's tensors as decoders of torch read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.architecture import Architecture
from card.engines.checkpoints import DenseMatrix, LinearTensors, Matrix, Norm, open_checkpoint

Layer = TypeVar("Layer")


@dataclass(frozen=True)
class LayerWeights(Generic[Layer]):
    """One decoder layer; query, key and value are one linear layer, gate and up another.

    Norm weights stand twice in a row, see `decoder.normed`; LayerNorm's are [2, hidden], with
    their bias. None: the family has no such norm.
    """

    input_norm: Tensor | None
    query_key_value: Layer
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Layer
    post_norm: Tensor | None
    gate_up: Layer
    down: Layer
    attention_norm: Tensor | None = None
    down_norm: Tensor | None = None


@dataclass(frozen=True)
class Weights(Generic[Layer]):
    embedding: Tensor
    layers: list[LayerWeights[Layer]]
    norm: Tensor
    head: Layer


def _as_tensor(matrix: Matrix) -> Tensor:
    """Sixteen bits stay sixteen, so that no more than them crosses to a device."""
    if not isinstance(matrix, DenseMatrix):
        return torch.from_numpy(matrix.dense())
    if matrix.values.dtype == np.uint16:
        return torch.from_numpy(matrix.values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(matrix.values)


def load_weights(
    directory: Path,
    architecture: Architecture,
    dtype: torch.dtype,
    make: Callable[[Tensor, Tensor | None], Layer],
    device: torch.device,
) -> Weights[Layer]:
    """Load every tensor that a decoder reads onto `device`.

    make  makes a linear layer of a weight [outputs, inputs] and a bias [outputs] or None

    Raises `EngineError` on files that do not fit.
    """

    def tensor(values: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(values).to(device).to(dtype)

    def norm(values: Norm) -> Tensor:
        return tensor(values) if values.ndim > 1 else tensor(values).repeat(2)

    def maybe(values: Norm | None) -> Tensor | None:
        return None if values is None else norm(values)

    def matrix(values: Matrix) -> Tensor:
        return _as_tensor(values).to(device).to(dtype)

    def linear(values: LinearTensors) -> Layer:
        bias = None if values.bias is None else tensor(values.bias)
        return make(matrix(values.weight), bias)

    checkpoint = open_checkpoint(directory, architecture)
    layers = [
        LayerWeights(
            input_norm=maybe(layer.input_norm),
            query_key_value=linear(layer.query_key_value),
            query_norm=maybe(layer.query_norm),
            key_norm=maybe(layer.key_norm),
            output=linear(layer.output),
            post_norm=maybe(layer.post_norm),
            gate_up=linear(layer.gate_up),
            down=linear(layer.down),
            attention_norm=maybe(layer.attention_norm),
            down_norm=maybe(layer.down_norm),
        )
        for layer in checkpoint.layers()
    ]
    embedding = matrix(checkpoint.embedding())
    head = checkpoint.head()
    return Weights(
        embedding=embedding,
        layers=layers,
        norm=norm(checkpoint.final_norm()),
        head=make(embedding if head is None else matrix(head), None),
    )

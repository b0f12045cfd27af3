"""A checkpoint's tensors as the eager decoder wants them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.architecture import Architecture
from card.engines.checkpoints import LinearTensors, open_checkpoint
from card.engines.torch.linear import Linear, LinearLayer


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; query, key and value are one linear layer, gate and up another.

    Norm weights stand twice in a row, see `decoder.rms_norm`.
    """

    input_norm: Tensor
    query_key_value: LinearLayer
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: LinearLayer
    post_norm: Tensor
    gate_up: LinearLayer
    down: LinearLayer


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: LinearLayer


def load_weights(
    directory: Path,
    architecture: Architecture,
    dtype: torch.dtype,
    device: torch.device | None = None,
    make_linear: Callable[[Tensor, Tensor | None], LinearLayer] = Linear,
) -> Weights:
    """Load every tensor the decoder uses onto `device`, by default the processor's memory.

    Raises `EngineError` on files that do not fit.
    """

    def tensor(values: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(values).to(dtype).to(device or "cpu")

    def norm(values: NDArray[np.float32]) -> Tensor:
        return tensor(values).repeat(2)

    def linear(values: LinearTensors) -> LinearLayer:
        bias = None if values.bias is None else tensor(values.bias)
        return make_linear(tensor(values.weight.dense()), bias)

    checkpoint = open_checkpoint(directory, architecture)
    layers = [
        LayerWeights(
            input_norm=norm(layer.input_norm),
            query_key_value=linear(layer.query_key_value),
            query_norm=None if layer.query_norm is None else norm(layer.query_norm),
            key_norm=None if layer.key_norm is None else norm(layer.key_norm),
            output=linear(layer.output),
            post_norm=norm(layer.post_norm),
            gate_up=linear(layer.gate_up),
            down=linear(layer.down),
        )
        for layer in checkpoint.layers()
    ]
    embedding = tensor(checkpoint.embedding().dense())
    head = checkpoint.head()
    return Weights(
        embedding=embedding,
        layers=layers,
        norm=norm(checkpoint.final_norm()),
        head=make_linear(embedding if head is None else tensor(head.dense()), None),
    )

"""Computes one layer with NumPy, to find the magnitude of its products' inputs.

It computes in float64, so that decisions are the same on every machine and at every load.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from card.engines.architecture import Architecture
from card.engines.checkpoints.tensors import LayerTensors, LinearTensors
from card.engines.rotary import rotary_tables


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of products, for each token of a text, float64.

    attention  [tokens, hidden], of the product of queries, keys and values
    mixed      [tokens, heads * head_size], of the product of attention's output
    """

    attention: NDArray[np.float64]
    mixed: NDArray[np.float64]


def inputs_of(a: Architecture, layer: LayerTensors, states: NDArray[np.float64]) -> Inputs:
    """Inputs of the layer's products, for a text's `states` [tokens, hidden] before the layer."""
    assert layer.input_norm is not None  # as plain layers have
    normed = _norm(a, states, layer.input_norm)
    return Inputs(normed, _attended(a, layer, normed))


def forward(
    a: Architecture, layer: LayerTensors, inputs: Inputs, states: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The states [tokens, hidden] behind the layer."""
    states = states + _linear(layer.output, inputs.mixed)
    assert layer.post_norm is not None  # as plain layers have
    gate_up = _norm(a, states, layer.post_norm)
    gate, up = np.split(_linear(layer.gate_up, gate_up), 2, axis=-1)
    return states + _linear(layer.down, _silu(gate) * up)


def _attended(
    a: Architecture, layer: LayerTensors, normed: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[tokens, heads * head_size]; each token attends those before it and itself."""
    tokens = len(normed)
    joint = _linear(layer.query_key_value, normed).reshape(tokens, -1, a.head_size)
    query, key, value = np.split(joint, [a.heads, a.heads + a.kv_heads], axis=1)
    query = _rotated(a, query, layer.query_norm).reshape(tokens, a.kv_heads, a.group, a.head_size)
    key = _rotated(a, key, layer.key_norm)
    scores = np.einsum("qhgd,khd->hgqk", query, key, optimize=True) / np.sqrt(a.head_size)
    scores[..., np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    chances = np.exp(scores - scores.max(axis=-1, keepdims=True))
    chances /= chances.sum(axis=-1, keepdims=True)
    mixed = np.einsum("hgqk,khd->qhgd", chances, value, optimize=True)
    return np.asarray(mixed.reshape(tokens, -1))


def _rotated(
    a: Architecture, heads: NDArray[np.float64], norm: NDArray[np.float32] | None
) -> NDArray[np.float64]:
    """[tokens, heads, head_size], normalised in families that normalise."""
    if norm is not None:
        heads = _norm(a, heads, norm)
    cosine, sine = rotary_tables(a.rope, a.head_size, len(heads))
    turned: NDArray[np.float64] = heads * cosine + np.roll(heads, a.head_size // 2, -1) * sine
    return turned


def _norm(
    a: Architecture, states: NDArray[np.float64], weight: NDArray[np.float32]
) -> NDArray[np.float64]:
    mean = np.square(states).mean(axis=-1, keepdims=True)
    normed: NDArray[np.float64] = states / np.sqrt(mean + a.norm_epsilon) * weight
    return normed


def _linear(tensors: LinearTensors, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
    product: NDArray[np.float64] = inputs @ tensors.weight.dense().T.astype(np.float64)
    return product if tensors.bias is None else product + tensors.bias


def _silu(gate: NDArray[np.float64]) -> NDArray[np.float64]:
    """gate · sigmoid(gate), by a function that cannot overflow."""
    activated: NDArray[np.float64] = gate * (0.5 + 0.5 * np.tanh(0.5 * gate))
    return activated

"""The lean decoder in OpenVINO, which follows the description of a family: one pass over rows of
many sessions.

Inputs of a pass with `rows` rows, beside those of its attention (`attention`):

tokens, positions  [rows] int32; positions are absolute
logit_rows         [n] int32, rows that need logits
count              [] int32, ids to rank (graphs that rank)
temperature        [n, 1] float32 and noise [n, ranked ids] float32: the graph ranks
                   logits / temperature + noise

Outputs: ``logits`` [n, vocabulary] float32, unless only some ids are ranked; with `ranks` the
`count` likeliest ``ids`` int32 and their ``log_probabilities`` float32, both [n, count]; with taps
the hidden ``states`` [rows, numbers] bfloat16 of all rows, side by side.

A row's sums run over absolute positions in order, and its bits do not depend on the other rows of
the pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from card.engines.architecture import Architecture
from card.engines.checkpoints import (
    Checkpoint,
    LayerTensors,
    LinearTensors,
    Matrix,
    Norm,
    ahead,
)
from card.engines.openvino.attention import PagedAttention
from card.engines.openvino.memory import PageMemory
from card.engines.openvino.nodes import Node, input_named, integer, integers, output_named, real
from card.engines.openvino.weights import WeightFormat
from card.engines.positions import RopeScaling
from card.engines.rotary import rotary_tables

_BLOCK = 64
"""Ids per block of the vocabulary in the search for the likeliest ids."""


class DecoderBuilder:
    """Builds the graph; holds the parts that every layer shares.

    weights    storage of matrices
    pages      memory of the KV cache
    positions  size of the rotary tables
    ranks      output the likeliest ids of every row too
    ranked     [ids] ascending, the only ids with computed logits; None: all ids
    taps       as of `EngineOptions`, none negative
    """

    def __init__(
        self,
        architecture: Architecture,
        checkpoint: Checkpoint,
        weights: WeightFormat,
        pages: PageMemory,
        *,
        positions: int,
        ranks: bool,
        ranked: NDArray[np.int32] | None,
        taps: Sequence[int] = (),
    ) -> None:
        self._a = architecture
        self._checkpoint = checkpoint
        self._weights = weights
        self._ranks, self._ranked, self._taps = ranks, ranked, taps
        self._inputs: list[Node] = []
        self._attention = PagedAttention(architecture, pages, positions, self._input)
        rows = self._input("positions", [-1])
        ropes = dict.fromkeys(architecture.at(layer).rope for layer in range(architecture.layers))
        self._turns = {
            rope: self._turn_at(rope, rows, positions) for rope in ropes if rope is not None
        }

    def build(self) -> ov.Model:
        """The decoder with its weights. Raises `EngineError` on tensors that do not fit."""
        tokens = self._input("tokens", [-1])
        logit_rows = self._input("logit_rows", [-1])
        table = self._checkpoint.embedding()
        embedding = self._weights.constant(table)
        hidden = _times(ops.gather(embedding, tokens, integer(0)), self._a.embedding_scale)
        states = [hidden]
        for index, layer in enumerate(ahead(self._checkpoint.layers())):
            hidden = self._layer(index, layer, hidden)
            states.append(hidden)
        norm = self._checkpoint.final_norm()
        hidden = self._norm(ops.gather(hidden, logit_rows, integer(0)), norm)
        logits = self._logits(hidden, table)
        results = [
            *([("states", self._tapped(states, norm))] if self._taps else []),
            *([("logits", logits)] if self._ranked is None else []),
            *(self._best(logits) if self._ranks else []),
        ]
        outputs = [output_named(name, node) for name, node in results]
        return ov.Model(outputs, self._inputs, "decoder")

    def _tapped(self, states: Sequence[Node], norm: Norm | None) -> Node:
        """[rows, numbers] bfloat16, the tapped ones of all states, side by side."""
        last = len(states) - 1
        tapped = [
            self._norm(states[tap], norm) if tap == last else states[tap] for tap in self._taps
        ]
        return ops.convert(ops.concat(tapped, -1), "bf16")

    def _logits(self, hidden: Node, table: Matrix) -> Node:
        """[rows, ids], the logits of the ranked ids."""
        cap = self._a.logit_cap
        logits = _times(self._products_by_head(hidden, table), self._a.logit_scale)
        return _times(ops.tanh(_times(logits, 1 / cap)), cap) if cap else logits

    def _products_by_head(self, hidden: Node, table: Matrix) -> Node:
        head, ranked = self._checkpoint.head(), self._ranked
        matrix = table if head is None else head
        if ranked is not None:
            matrix = matrix.rows(ranked.astype(np.int64))
        return self._weights.product(hidden, matrix)

    def _input(self, name: str, shape: Sequence[int], kind: ov.Type = ov.Type.i32) -> Node:
        self._inputs.append(input_named(name, shape, kind))
        return self._inputs[-1]

    def _turn_at(self, rope: RopeScaling, positions: Node, size: int) -> tuple[Node, Node]:
        """Cosines and sines [rows, 1, 1, rotated] of the rotation at `positions`."""
        cosines, sines = rotary_tables(rope, self._a.head_size, size)[:, :, None]
        sines[..., : sines.shape[-1] // 2] *= -1.0  # the graph negates, see `_rotated`
        cosine, sine = (
            ops.gather(ops.constant(table), positions, integer(0)) for table in (cosines, sines)
        )
        return cosine, sine

    def _layer(self, index: int, layer: LayerTensors, hidden: Node) -> Node:
        mixed = self._attended(index, layer, hidden)
        hidden = self._added(hidden, self._linear(layer.output, mixed), layer.attention_norm)
        gated = self._gated(layer.gate_up, self._norm(hidden, layer.post_norm))
        return self._added(hidden, self._linear(layer.down, gated), layer.down_norm)

    def _added(self, hidden: Node, output: Node, norm: Norm | None) -> Node:
        """The residual stream with the output of attention or of the network."""
        return ops.add(hidden, _times(self._norm(output, norm), self._a.residual_scale))

    def _gated(self, joint: LinearTensors, inputs: Node) -> Node:
        """[rows, intermediate]"""
        if not self._a.description.gated:
            return self._activated(self._linear(joint, inputs))
        gate, up = self._gate_and_up(joint, inputs)
        return ops.multiply(self._activated(gate), up)

    def _activated(self, states: Node) -> Node:
        return ops.swish(states) if self._a.activation == "silu" else ops.gelu(states, "tanh")

    def _gate_and_up(self, joint: LinearTensors, inputs: Node) -> list[Node]:
        """Gate and up, [rows, intermediate] each. In float32 one product computes both, with fewer
        operators. In bfloat16 one product would round differently in decoders for fixed rows and
        for any rows."""
        if self._weights.compressed:
            halves: list[Node] = ops.split(self._linear(joint, inputs), integer(-1), 2).outputs()
            return halves
        return [self._linear(half, inputs) for half in _halves(joint)]

    def _attended(self, index: int, layer: LayerTensors, hidden: Node) -> Node:
        a, size = self._a, self._a.head_size
        normed = self._norm(hidden, layer.input_norm)
        joint = self._linear(layer.query_key_value, normed)
        sizes = integers([(a.heads + a.kv_heads) * size, a.kv_heads * size])
        joint, values = ops.variadic_split(joint, integer(-1), sizes).outputs()
        query, keys = self._query_and_keys(index, layer, joint)
        return self._attention.mixed(index, query, keys, values)

    def _query_and_keys(self, index: int, layer: LayerTensors, joint: Node) -> list[Node]:
        """Query and keys, rotated, [rows, heads, 1, size] each. One operator rotates both if
        neither is normalised."""
        a, rope = self._a, self._a.at(index).rope
        heads = [a.heads, a.kv_heads]
        norms = [layer.query_norm, layer.key_norm]
        if all(norm is None for norm in norms):
            both = self._rotated(joint, sum(heads), None, rope)
            outputs: list[Node] = ops.variadic_split(both, integer(1), integers(heads)).outputs()
            return outputs
        sizes = integers([count * a.head_size for count in heads])
        apart = ops.variadic_split(joint, integer(-1), sizes).outputs()
        return [self._rotated(*each, rope) for each in zip(apart, heads, norms, strict=True)]

    def _rotated(
        self, states: Node, heads: int, norm: Norm | None, rope: RopeScaling | None
    ) -> Node:
        """[rows, heads * size] -> [rows, heads, 1, size], normalised in families that normalise;
        in the form that OpenVINO recognises as one operator."""
        size = self._a.head_size
        if self._a.description.query_key_norm == "whole":
            states, norm = self._norm(states, norm), None
        states = ops.reshape(states, integers([0, heads, 1, size]), True)
        states = self._norm(states, norm)
        if rope is None:
            return states
        rotated = rope.rotated(size)
        if rotated == size:
            return self._turned(states, rope)
        cut = ops.variadic_split(states, integer(3), integers([rotated, -1])).outputs()
        return ops.concat([self._turned(cut[0], rope), cut[1]], -1)

    def _turned(self, states: Node, rope: RopeScaling) -> Node:
        """[rows, heads, 1, rotated] at their positions."""
        half = rope.rotated(self._a.head_size) // 2
        first, second = ops.variadic_split(states, integer(3), integers([half, -1])).outputs()
        turned = ops.concat([ops.multiply(second, real(-1.0)), first], -1)
        cosine, sine = self._turns[rope]
        return ops.add(ops.multiply(states, cosine), ops.multiply(turned, sine))

    def _linear(self, tensors: LinearTensors, inputs: Node) -> Node:
        product = self._weights.product(inputs, tensors.weight)
        return product if tensors.bias is None else ops.add(product, ops.constant(tensors.bias))

    def _norm(self, states: Node, weight: Norm | None) -> Node:
        """Root-mean-square norm (Zhang and Sennrich, arXiv 1910.07467) or LayerNorm, in the form
        that OpenVINO recognises as one operator; the states where there is no weight."""
        epsilon = self._a.norm_epsilon
        if weight is None:
            return states
        if weight.ndim > 1:
            normed = ops.mvn(states, integers([-1]), True, epsilon, "inside_sqrt")
            return ops.add(ops.multiply(normed, ops.constant(weight[0])), ops.constant(weight[1]))
        mean = ops.reduce_mean(ops.power(states, real(2.0)), integers([-1]), keep_dims=True)
        root = ops.sqrt(ops.add(mean, real(epsilon)))
        normed = ops.multiply(states, ops.divide(real(1.0), root))
        return ops.multiply(normed, ops.constant(weight))

    def _best(self, logits: Node) -> list[tuple[str, Node]]:
        """The `count` likeliest ids of each row with their log-probabilities.

        They lie in the `count` blocks with the greatest maximum, so the graph searches only these
        and not the whole vocabulary.
        """
        count = self._input("count", [])
        temperature = self._input("temperature", [-1, 1], ov.Type.f32)
        noise = self._input("noise", [-1, -1], ov.Type.f32)
        logits = ops.add(ops.divide(logits, temperature), noise)
        ranked = self._ranked
        vocabulary = self._a.vocabulary if ranked is None else len(ranked)
        size = _block_size(vocabulary)
        greatest = ops.reduce_max(logits, integers([-1]), keep_dims=True)
        total = ops.reduce_sum(
            ops.exp(ops.subtract(logits, greatest)), integers([-1]), keep_dims=True
        )
        normaliser = ops.add(greatest, ops.log(total))
        padding = -vocabulary % size
        padded = logits
        if padding:
            padded = ops.pad(
                logits, integers([0, 0]), integers([0, padding]), "constant", real(-np.inf)
            )
        blocks = ops.reshape(padded, integers([0, (vocabulary + padding) // size, size]), True)
        block = ops.topk(
            ops.reduce_max(blocks, integers([-1])), count, -1, "max", "value", "i32"
        ).output(1)
        chosen = ops.gather(blocks, block, integer(1), 1)
        inside = ops.topk(
            ops.reshape(chosen, integers([0, -1]), True), count, -1, "max", "value", "i32"
        )
        first_id = ops.multiply(block, integer(size))
        which = ops.divide(inside.output(1), integer(size))
        offset = ops.mod(inside.output(1), integer(size))
        ids = ops.add(ops.gather(first_id, which, integer(1), 1), offset)
        if ranked is not None:
            ids = ops.gather(ops.constant(ranked), ids, integer(0))
        return [("ids", ids), ("log_probabilities", ops.subtract(inside.output(0), normaliser))]


def _times(states: Node, factor: float) -> Node:
    return states if factor == 1 else ops.multiply(states, real(factor))


def most_ranked(vocabulary: int) -> int:
    """Most likeliest ids that a graph can find in a vocabulary: one for every block."""
    return -(-vocabulary // _block_size(vocabulary))


def _block_size(vocabulary: int) -> int:
    """Ids per block; 1 for small vocabularies."""
    return _BLOCK if vocabulary >= _BLOCK * _BLOCK else 1


def _halves(joint: LinearTensors) -> list[LinearTensors]:
    """Two linear layers that were stacked into one."""
    half = joint.weight.shape[0] // 2
    weights = [joint.weight.rows(slice(half)), joint.weight.rows(slice(half, None))]
    biases = (None, None) if joint.bias is None else np.split(joint.bias, 2)
    return [LinearTensors(weight, bias) for weight, bias in zip(weights, biases, strict=True)]

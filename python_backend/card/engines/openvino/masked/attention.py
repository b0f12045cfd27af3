"""Attention of the lanes of a pass, each over the visible part of its KV cache.

Inputs, with `lanes` lanes of `width` rows each (padded), `extent` visible places and `writes`
stored entries:

gather    [lanes, width] int32, the row at each (lane, row)
scatter   [rows] int32, each row's place among lanes * width
mask      [lanes, 1, group * width, extent] float32, 0 or -inf, the same for every query head of a
          group
source    [writes] int32, the row of each stored entry
place     [writes, kv_heads, 3] int32, its (lane, head, place)
keys.N, values.N  [lanes, kv_heads, extent, head_size], the visible part of layer N's KV cache, as
          it is before the pass

Outputs: ``keys`` and ``values`` [layers, rows, kv_heads, head_size] of the rows.

New entries are put at their places before a row looks at them, so sums run over absolute positions
in order.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from card.engines.architecture import Architecture
from card.engines.layout import HIDDEN
from card.engines.openvino.attention import AddInput
from card.engines.openvino.nodes import Node, integer, integers, real

_INFINITE = {ov.Type.f32: np.inf, ov.Type.bf16: float.fromhex("0x1.ffp+127")}
"""The least number that becomes infinite in an element type of the cache."""


class MaskedAttention:
    """Implements `attention.Attention`."""

    def __init__(self, architecture: Architecture, kv_type: ov.Type, add_input: AddInput) -> None:
        a = self._a = architecture
        self._kv_type = kv_type
        self._add_input = add_input
        self.query_scale = a.head_size**-0.5  # scores are scaled there, where it costs nothing
        self._gather = add_input("gather", [-1, -1])
        self._scatter = add_input("scatter", [-1])
        mask = add_input("mask", [-1, 1, -1, -1], ov.Type.f32)
        self._seen = ops.equal(mask, real(0.0))
        self._source = add_input("source", [-1])
        self._place = add_input("place", [-1, a.kv_heads, 3])
        self._new_keys: list[Node] = []
        self._new_values: list[Node] = []

    def mixed(self, layer: int, query: Node, keys: Node, values: Node) -> Node:
        a, size = self._a, self._a.head_size
        keys, values = self._storable(keys, values)
        self._new_keys.append(keys)
        self._new_values.append(values)
        seen_keys = self._visible(f"keys.{layer}", keys)
        seen_values = self._visible(f"values.{layer}", values)

        # [lanes, width, heads, size] -> [lanes, kv_heads, group * width, size]
        flat_query = ops.reshape(query, integers([0, a.heads, size]), True)
        by_lane = ops.transpose(
            ops.gather(flat_query, self._gather, integer(0)), integers([0, 2, 1, 3])
        )
        grouped = ops.reshape(by_lane, integers([0, a.kv_heads, -1, size]), True)
        scores = ops.matmul(grouped, seen_keys, False, True)
        # Chosen, not added: what is hidden may be infinite, or not a number.
        scores = ops.select(self._seen, scores, real(HIDDEN))
        mixed = ops.matmul(ops.softmax(scores, -1), seen_values, False, False)
        # and back to [lanes * width, heads * size]
        by_head = ops.reshape(mixed, integers([0, a.heads, -1, size]), True)
        by_row = ops.transpose(by_head, integers([0, 2, 1, 3]))
        flat = ops.reshape(by_row, integers([-1, a.heads * size]), False)
        return ops.gather(flat, self._scatter, integer(0))

    def outputs(self) -> list[tuple[str, Node]]:
        return [
            ("keys", ops.concat([_leading(keys) for keys in self._new_keys], 0)),
            ("values", ops.concat([_leading(values) for values in self._new_values], 0)),
        ]

    def _storable(self, keys: Node, values: Node) -> tuple[Node, Node]:
        """[rows, kv_heads, size] in the element type of the cache, as `torch.kv.storable`."""
        keys, values = self._by_head(keys), self._by_head(values)
        finite = ops.less(ops.abs(values), real(_INFINITE[self._kv_type]))
        keys = ops.select(finite, keys, real(np.nan))
        values = ops.select(finite, values, real(0.0))
        return ops.convert(keys, self._kv_type), ops.convert(values, self._kv_type)

    def _by_head(self, states: Node) -> Node:
        return ops.reshape(states, integers([0, self._a.kv_heads, self._a.head_size]), True)

    def _visible(self, name: str, new: Node) -> Node:
        """[lanes, kv_heads, extent, size]: the places a pass looks at, new entries among them."""
        a = self._a
        before = self._add_input(name, [-1, a.kv_heads, -1, a.head_size], self._kv_type)
        entries = ops.gather(new, self._source, integer(0))
        return ops.convert(ops.scatter_nd_update(before, self._place, entries), ov.Type.f32)


def _leading(node: Node) -> Node:
    return ops.unsqueeze(node, integer(0))

"""What a decoder asks of its attention while its graph is put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import openvino as ov

from card.engines.openvino.nodes import Node


class AddInput(Protocol):
    def __call__(self, name: str, shape: Sequence[int], kind: ov.Type = ov.Type.i32) -> Node:
        """A further input of the decoder."""


class Attention(Protocol):
    """Stores the keys and values of a pass and lets its rows look at what they see.

    query_scale  what queries are to be multiplied by where they are rotated
    """

    query_scale: float

    def mixed(self, layer: int, query: Node, keys: Node, values: Node) -> Node:
        """[rows, heads * head_size], the values that each row attends to.

        query   [rows, heads, 1, head_size], rotated
        keys    [rows, kv_heads, 1, head_size], rotated
        values  [rows, kv_heads * head_size]
        """

    def outputs(self) -> list[tuple[str, Node]]:
        """Outputs of the decoder that come of it, by name, when all layers are there."""

"""Short names for the parts of graphs, and the names of their inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

Node = Any
"""A node or an output of the graph; OpenVINO's operators accept and return both."""


def input_named(
    name: str, shape: Sequence[int] | ov.PartialShape, kind: ov.Type = ov.Type.i32
) -> Node:
    """An input of the graph with a name."""
    node = ops.parameter(shape, kind, name)
    node.output(0).get_tensor().set_names({name})
    return node


def output_named(name: str, node: Node) -> Node:
    """An output of the graph with a name."""
    result = ops.result(node)
    result.output(0).get_tensor().set_names({name})
    return result


def integer(value: int) -> Node:
    return ops.constant(np.array(value, np.int32))


def integers(values: list[int]) -> Node:
    return ops.constant(np.array(values, np.int32))


def real(value: float) -> Node:
    return ops.constant(np.array(value, np.float32))


_CHOICE = "takes."


ANY_ROWS = 0
"""The row count of a decoder that takes any pass."""


def choice_of(rows: int) -> str:
    """The name of the input that chooses the decoder of `rows` rows."""
    return f"{_CHOICE}{rows}"


def is_choice(name: str) -> bool:
    """Whether an input chooses a decoder."""
    return name.startswith(_CHOICE)


def output_of(name: str, rows: int) -> str:
    """The name of an output of the decoder of `rows` rows."""
    return f"{name}.{rows}"

"""Graphs of a decoder: for any pass, and for passes of fixed numbers of rows.

If shapes are known, the plugin prepares operators once, when it compiles. A graph for any pass
checks every operator's shape in every pass (20 % of the time with a small model) and prepares many
operators again when the number of rows changes. The plugin also fuses more if shapes are known. If
fusing changes the rounding, as in very small models, the check at load detects that
(`card.engines.calibration`).

Inputs: those of the decoder, and in a graph of several decoders

takes.R            [1] boolean, for each of their row counts R; one is true

Outputs: those of the decoder by row count, as in ``logits.4``. In a graph of several decoders, the
outputs of row counts that were not chosen are empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import openvino as ov
from openvino import opset13 as ops

from card.engines.openvino.nodes import Node, input_named, integers, output_named
from card.engines.openvino.weights import WeightFormat, model_over

_CHOICE = "takes."


ANY_ROWS = 0
"""The row count of a decoder that takes any pass."""


def build_graph(decoder: ov.Model, row_counts: Sequence[int], weights: WeightFormat) -> ov.Model:
    """A graph for passes with fixed numbers of rows, or for any pass.

    decoder     the model that `decoder.DecoderBuilder` built
    row_counts  `ANY_ROWS` alone, or fixed numbers of rows
    """
    if len(row_counts) > 1:
        return _graph_of_several(decoder, row_counts, weights)
    (rows,) = row_counts
    graph = decoder.clone()
    for result in graph.get_results():
        tensor = result.output(0).get_tensor()
        tensor.set_names({output_of(tensor.any_name, rows)})
    if rows != ANY_ROWS:
        fixed = _shapes_of(rows)
        graph.reshape(
            {
                port.any_name: ov.PartialShape(fixed.get(port.any_name, port.get_partial_shape()))
                for port in graph.inputs
            }
        )
    return graph


def _graph_of_several(
    decoder: ov.Model, row_counts: Sequence[int], weights: WeightFormat
) -> ov.Model:
    """A graph of several decoders over one copy of the weights, which saves processor cache.

    Each decoder is the body of an If; the plugin converts a matrix once for all bodies of a graph.
    """
    given = {
        port.any_name: input_named(port.any_name, port.get_partial_shape(), port.get_element_type())
        for port in decoder.inputs
    }
    inputs = list(given.values())
    results = []
    for rows in row_counts:
        # The choice is an input, because the plugin may overwrite an operator's result too early.
        chosen = input_named(choice_of(rows), [1], ov.Type.boolean)
        inputs.append(chosen)
        body = decoder.clone()
        _fix_shapes(body, rows)
        results += _branch(chosen, body, rows, given)
    return model_over(weights, results, inputs, "decoders")


def choice_of(rows: int) -> str:
    """The name of the input that chooses the decoder of `rows` rows."""
    return f"{_CHOICE}{rows}"


def is_choice(name: str) -> bool:
    """Whether an input chooses a decoder."""
    return name.startswith(_CHOICE)


def output_of(name: str, rows: int) -> str:
    """The name of an output of the decoder of `rows` rows."""
    return f"{name}.{rows}"


def _shapes_of(rows: int) -> dict[str, list[int]]:
    """Shapes of the inputs that depend on the number of rows."""
    return {
        "tokens": [rows],
        "positions": [rows],
        "past": [rows + 1],
        "begins": [rows + 2],
        "first_page": [rows + 2],
    }


def _fix_shapes(body: ov.Model, rows: int) -> None:
    """Set the shapes of a body's inputs at the operators that read them: the parameters themselves
    have the dynamic shapes of the If's inputs."""
    shapes = _shapes_of(rows)
    for parameter in body.get_parameters():
        shape = shapes.get(parameter.output(0).any_name)
        if shape is not None:
            known = ops.reshape(parameter, integers(shape), special_zero=False)
            for reader in parameter.output(0).get_target_inputs():
                if reader.get_node() != known:
                    reader.replace_source_output(known.output(0))
    body.validate_nodes_and_infer_types()


def _branch(chosen: Node, body: ov.Model, rows: int, given: Mapping[str, Node]) -> list[Node]:
    """Results of the body where it is chosen, else empty ones."""
    empty = [
        ops.result(ops.constant(ov.Tensor(result.get_element_type(), [0] * _rank(result))))
        for result in body.get_results()
    ]
    branch = ops.if_op(chosen)
    branch.set_then_body(body)
    branch.set_else_body(ov.Model(empty, [], "nothing"))
    for parameter in body.get_parameters():
        read = given[parameter.output(0).any_name]
        branch.set_input(read.output(0), parameter, None)
    return [
        output_named(output_of(result.output(0).any_name, rows), branch.set_output(result, nothing))
        for result, nothing in zip(body.get_results(), empty, strict=True)
    ]


def _rank(result: Node) -> int:
    rank: int = result.get_input_partial_shape(0).rank.get_length()
    return rank

"""What is compiled of a decoder: graphs for any pass, and for passes of fixed numbers of rows.

The plugin prepares operators whose shapes are known once, when it compiles; a graph that takes any
pass looks at every operator's shape in every pass, a fifth of its time with a small model, and
prepares many of them anew when the number of rows changes. The plugin also fuses more where it
knows shapes; if something then rounds at another place, as in very small models, the check at load
finds out (`card.engines.calibration`).

Inputs: those of the decoder, and in a graph of several

takes.R            [1] boolean, for each of their row counts R; one is true

Outputs: those of the decoder by row count, as in ``logits.4``. In a graph of several, behind a pass
those of other row counts are empty.
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
    """A graph for passes with so many rows, or so many; or for any pass.

    decoder     of `decoder.DecoderBuilder`
    row_counts  `ANY_ROWS` alone, or others
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
    """Over one copy of the weights: a cache that keeps these need not keep those of all.

    Each decoder is the body of an If: what the plugin makes of a matrix, it makes once for all
    bodies of a graph.
    """
    given = {
        port.any_name: input_named(port.any_name, port.get_partial_shape(), port.get_element_type())
        for port in decoder.inputs
    }
    inputs = list(given.values())
    results = []
    for rows in row_counts:
        # An input, since the plugin may overwrite what an operator says before it is looked at.
        chosen = input_named(choice_of(rows), [1], ov.Type.boolean)
        inputs.append(chosen)
        body = decoder.clone()
        _fix_shapes(body, rows)
        results += _branch(chosen, body, rows, given)
    return model_over(weights, results, inputs, "decoders")


def choice_of(rows: int) -> str:
    """The input that chooses the decoder of so many rows."""
    return f"{_CHOICE}{rows}"


def is_choice(name: str) -> bool:
    """Whether an input chooses a decoder."""
    return name.startswith(_CHOICE)


def output_of(name: str, rows: int) -> str:
    """An output of the decoder of so many rows."""
    return f"{name}.{rows}"


def _shapes_of(rows: int) -> dict[str, list[int]]:
    """Of inputs whose shape the number of rows decides."""
    return {
        "tokens": [rows],
        "positions": [rows],
        "past": [rows + 1],
        "begins": [rows + 2],
        "first_page": [rows + 2],
    }


def _fix_shapes(body: ov.Model, rows: int) -> None:
    """Let a body know the shapes of its inputs: its parameters have those that the If is given,
    which knows none, so what reads them is told."""
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

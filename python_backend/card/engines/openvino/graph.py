"""What is compiled of a decoder: graphs for any pass, and for passes of fixed numbers of rows.

The plugin prepares operators whose shapes are known once, when it compiles; a graph that takes any
pass looks at every operator's shape in every pass, a fifth of its time with a small model, and
prepares many of them anew when the number of rows changes. The plugin also fuses more where it
knows shapes; if something then rounds at another place, as in very small models, the check at load
finds out (`card.engines.calibration`).

Inputs: those of the decoder; with attention under masks

keys.N, values.N   [all lanes, kv_heads, places, head_size], the whole KV cache of layer N
first, end         [2] int32, (lane, place) where its visible part begins, and behind its end
takes.R            [1] boolean, in a graph of several decoders, for each of their row counts R;
                   one is true

Outputs: those of the decoder by row count, as in ``logits.4``. In a graph of several, behind a pass
those of other row counts are empty.
"""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov
from openvino import opset13 as ops

from card.engines.architecture import Architecture
from card.engines.openvino.nodes import Node, input_named, integers, output_named
from card.engines.openvino.weights import WeightFormat, model_over

_CHOICE = "takes."


ANY_ROWS = 0
"""The row count of a decoder that takes any pass."""


def build_graph(
    decoder: ov.Model, row_counts: Sequence[int], architecture: Architecture, weights: WeightFormat
) -> ov.Model:
    """A graph for passes with so many rows, or so many; or for any pass. Under masks, passes with
    so many rows are of one session.

    decoder     of `decoder.build_decoder`
    row_counts  `ANY_ROWS` alone, or others
    """
    if len(row_counts) > 1:
        return _graph_of_several(decoder, row_counts, architecture, weights)
    (rows,) = row_counts
    graph = _graph_of_one(decoder, rows, weights)
    if rows != ANY_ROWS:
        fixed = _shapes_of(rows, architecture)
        graph.reshape(
            {
                port.any_name: ov.PartialShape(fixed.get(port.any_name, port.get_partial_shape()))
                for port in graph.inputs
            }
        )
    return graph


def _graph_of_one(decoder: ov.Model, rows: int, weights: WeightFormat) -> ov.Model:
    decoder = decoder.clone()
    given = _Given(decoder)
    for parameter in decoder.get_parameters():
        _replace(parameter, given.behind[parameter.output(0).any_name])
    for result in decoder.get_results():
        tensor = result.output(0).get_tensor()
        tensor.set_names({output_of(tensor.any_name, rows)})
    if given.under_masks:
        return model_over(weights, decoder.get_results(), given.inputs, "decoder")
    return ov.Model(decoder.get_results(), given.inputs, "decoder")  # that is a language model's


def _graph_of_several(
    decoder: ov.Model, row_counts: Sequence[int], architecture: Architecture, weights: WeightFormat
) -> ov.Model:
    """Over one copy of the weights: a cache that keeps these need not keep those of all.

    Each decoder is the body of an If: what the plugin makes of a matrix, it makes once for all
    bodies of a graph. What a body reads is copied, under masks a few hundredths of a pass of short
    texts.
    """
    given = _Given(decoder)
    results = []
    for rows in row_counts:
        # An input, since the plugin may overwrite what an operator says before it is looked at.
        chosen = input_named(choice_of(rows), [1], ov.Type.boolean)
        given.inputs.append(chosen)
        body = decoder.clone()
        _fix_shapes(body, rows, architecture)
        results += _branch(chosen, body, rows, given)
    return model_over(weights, results, given.inputs, "decoders")


def choice_of(rows: int) -> str:
    """The input that chooses the decoder of so many rows."""
    return f"{_CHOICE}{rows}"


def is_choice(name: str) -> bool:
    """Whether an input chooses a decoder."""
    return name.startswith(_CHOICE)


def output_of(name: str, rows: int) -> str:
    """An output of the decoder of so many rows."""
    return f"{name}.{rows}"


class _Given:
    """What a graph gives its decoders: `inputs` of its own, and what stands `behind` them for each
    of the decoder's, by name: under masks the visible part of the KV cache, all else as it is."""

    def __init__(self, decoder: ov.Model) -> None:
        first, end = input_named("first", [2]), input_named("end", [2])
        self.under_masks = any("mask" in port.get_names() for port in decoder.inputs)
        self.inputs: list[Node] = [first, end] if self.under_masks else []
        self.behind: dict[str, Node] = {}
        for parameter in decoder.get_parameters():
            name = parameter.output(0).any_name
            shape, kind = parameter.get_partial_shape(), parameter.get_element_type()
            given = input_named(name, shape, kind)
            self.inputs.append(given)
            if self.under_masks and _is_cache(name):
                given = ops.slice(given, first, end, integers([1, 1]), integers([0, 2]))
            self.behind[name] = given


def _is_cache(name: str) -> bool:
    return name.startswith(("keys.", "values."))


def _shapes_of(rows: int, a: Architecture) -> dict[str, list[int]]:
    """Of inputs that are not the cache, in a pass with so many rows, under masks of one session;
    -1: any."""
    return {
        "tokens": [rows],
        "positions": [rows],
        "scatter": [rows],
        "source": [rows],
        "gather": [1, rows],
        "place": [rows, a.kv_heads, 3],
        "mask": [1, 1, a.group * rows, -1],
        "past": [rows + 1],
        "begins": [rows + 2],
        "first_page": [rows + 2],
    }


def _fix_shapes(body: ov.Model, rows: int, a: Architecture) -> None:
    """Let a body know the shapes of its inputs: its parameters have those that the If is given,
    which knows none, so what reads them is told."""
    shapes = _shapes_of(rows, a)
    for parameter in body.get_parameters():
        name = parameter.output(0).any_name
        shape = [1, a.kv_heads, -1, a.head_size] if _is_cache(name) else shapes.get(name)
        if shape is not None:
            _replace(parameter, ops.reshape(parameter, integers(shape), special_zero=False))
    body.validate_nodes_and_infer_types()


def _replace(parameter: Node, behind: Node) -> None:
    """Let everybody else who reads the parameter read that node."""
    for reader in parameter.output(0).get_target_inputs():
        if reader.get_node() != behind:
            reader.replace_source_output(behind.output(0))


def _branch(chosen: Node, body: ov.Model, rows: int, given: _Given) -> list[Node]:
    """Results of the body where it is chosen, else empty ones."""
    empty = [
        ops.result(ops.constant(ov.Tensor(result.get_element_type(), [0] * _rank(result))))
        for result in body.get_results()
    ]
    branch = ops.if_op(chosen)
    branch.set_then_body(body)
    branch.set_else_body(ov.Model(empty, [], "nothing"))
    for parameter in body.get_parameters():
        read = given.behind[parameter.output(0).any_name]
        branch.set_input(read.output(0), parameter, None)
    return [
        output_named(output_of(result.output(0).any_name, rows), branch.set_output(result, nothing))
        for result, nothing in zip(body.get_results(), empty, strict=True)
    ]


def _rank(result: Node) -> int:
    rank: int = result.get_input_partial_shape(0).rank.get_length()
    return rank

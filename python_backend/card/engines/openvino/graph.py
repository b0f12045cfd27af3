"""Graphs of a decoder, compiled for the processor: for any pass, and for fixed numbers of rows.

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

import ctypes
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal

import openvino as ov
from openvino import opset13 as ops
from openvino import properties
from openvino.properties import hint

from card.engines.openvino import SONAME
from card.engines.openvino.nodes import (
    ANY_ROWS,
    Node,
    choice_of,
    input_named,
    integers,
    output_named,
    output_of,
)
from card.engines.openvino.runner import CompiledDecoder, PassThreads, ThreadLimit
from card.engines.openvino.weights import WeightFormat, model_over
from card.engines.options import EngineOptions
from card.engines.processor import computes_in_bfloat16


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


_ROUNDED_INPUTS = 16
"""Inputs of a product that share a scale. Before a product by codes of few bits the plugin rounds
its inputs to eight bits. Groups of 32, its default, change the chat target by 0.0035 nats (KL), and
changed a greedy token that led by 0.51. Groups of 16 change it by 0.0019 nats in the same time.
Without rounding, the bits of a row would depend on the number of rows."""
_ROUNDED_INPUTS_OF_A_DRAFT = 32
"""With this the chat pair's draft agrees on as many tokens, and its pass takes 5 % less time."""

_PREPARED_CAPACITY = "CPU_RUNTIME_CACHE_CAPACITY"
_PREPARED_OPERATORS = 256
"""Most kept operators that are prepared for a shape; one shape of a pass has about forty. With the
default of 5,000 a process under mixed load grew for many minutes, with 1,024 for 15 minutes."""


Decoders = Mapping[int, CompiledDecoder]
"""Decoders by the rows of one session that they take."""


def compile_decoders(decoder: ov.Model, weights: WeightFormat, options: EngineOptions) -> Decoders:
    """Compile decoders for `graph_rows`, over one copy of the weights; or one for any pass.

    decoder  the model that `decoder.DecoderBuilder` built
    """
    row_counts = options.graph_rows or (ANY_ROWS,)
    graph = _compiled(build_graph(decoder, row_counts, weights), options)
    threads = PassThreads(thread_limit(), int(graph.get_property(properties.inference_num_threads)))
    weights.memory.unload()
    return {rows: CompiledDecoder(graph, rows, threads, weights.memory) for rows in row_counts}


def pass_dtype(options: EngineOptions) -> Literal["bfloat16", "float32"]:
    """The dtype of a pass. Products by codes of few bits are fastest in float32, even where the
    processor computes in bfloat16."""
    if options.dtype == "float32" or (options.compressed and options.dtype != "bfloat16"):
        return "float32"
    return "bfloat16" if computes_in_bfloat16() or options.dtype == "bfloat16" else "float32"


def kv_type(options: EngineOptions) -> ov.Type:
    """Element type of the KV cache. Where products round their inputs to eight bits, keys and
    values in float16 add no further error (benchmarks/NOTES.md)."""
    if pass_dtype(options) == "bfloat16":
        return ov.Type.bf16
    rounds = options.compressed and options.dtype != "float32"
    return ov.Type.f16 if rounds else ov.Type.f32


def _compiled(graph: ov.Model, options: EngineOptions) -> ov.CompiledModel:
    """A graph compiled for the processor with the options' precision and most threads."""
    rounded = _ROUNDED_INPUTS_OF_A_DRAFT if options.grows_trees else _ROUNDED_INPUTS
    precision = ov.Type.f32 if pass_dtype(options) == "float32" else ov.Type.bf16
    compiled: ov.CompiledModel = ov.Core().compile_model(
        graph,
        "CPU",
        {
            hint.inference_precision: precision,
            hint.kv_cache_precision: kv_type(options),  # the default has eight bits
            hint.performance_mode: hint.PerformanceMode.LATENCY,
            hint.enable_cpu_pinning: False,
            properties.inference_num_threads: options.most_threads,
            properties.streams.num: 1,
            hint.dynamic_quantization_group_size: rounded,
            _PREPARED_CAPACITY: _PREPARED_OPERATORS,
        },
    )
    return compiled


_REPAIRED = 12140
"""Interface version of oneTBB 2022.0."""


@cache
def thread_limit() -> ThreadLimit | None:
    """That of the oneTBB which OpenVINO has; None where its threads would not rest."""
    try:
        tbb = ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        repaired = tbb.TBB_runtime_interface_version() >= _REPAIRED
        return ThreadLimit(tbb) if repaired else None
    except (OSError, AttributeError):  # none is loaded, or one that is older still
        return None

"""Decoders compiled for the processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import openvino as ov
from openvino import properties
from openvino.properties import hint

from card.engines.openvino.graph import ANY_ROWS, build_graph, choice_of, is_choice, output_of
from card.engines.openvino.threads import PassThreads, thread_limit
from card.engines.openvino.weight_memory import WeightMemory
from card.engines.openvino.weights import WeightFormat
from card.engines.options import EngineOptions
from card.engines.processor import computes_in_bfloat16

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


@dataclass(frozen=True, slots=True)
class CompiledDecoder:
    """The decoder of `rows` rows (or `ANY_ROWS`) in a compiled graph. The decoders of a graph share
    `threads`. The graph refers to the `memory` of its weights."""

    graph: ov.CompiledModel
    rows: int
    threads: PassThreads
    memory: WeightMemory

    def create_infer_request(self) -> ov.InferRequest:
        """An infer request that runs this decoder."""
        request = self.graph.create_infer_request()
        for name in (port.any_name for port in self.graph.inputs):
            if is_choice(name):
                request.set_tensor(name, ov.Tensor(np.array([name == choice_of(self.rows)])))
        return request

    def index_of(self, output: str) -> int:
        """Index of an output of the decoder among the graph's outputs."""
        names = [port.any_name for port in self.graph.outputs]
        return names.index(output_of(output, self.rows))


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

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
its inputs to eight bits. In groups of 32, its own choice, that moves the chat target by 0.0035 nats
(KL), and a greedy token whose lead was 0.51 changed; in groups of 16 by 0.0019 in the same time.
Unrounded, bits of a row would depend on the number of rows."""
_ROUNDED_INPUTS_OF_A_DRAFT = 32
"""The chat pair's draft agrees with as many tokens of its texts, and its pass takes 5 % less."""

_PREPARED_CAPACITY = "CPU_RUNTIME_CACHE_CAPACITY"
_PREPARED_OPERATORS = 256
"""Operators prepared for some shape that are kept, some forty for one shape of a pass. The stock
limit of 5,000 let a process under mixed load grow for many minutes, and 1,024 for a quarter of an
hour."""


@dataclass(frozen=True, slots=True)
class CompiledDecoder:
    """The decoder of so many rows (or `ANY_ROWS`) of a compiled graph, whose decoders share
    `threads`. The graph refers to the `memory` of its weights."""

    graph: ov.CompiledModel
    rows: int
    threads: PassThreads
    memory: WeightMemory

    def create_infer_request(self) -> ov.InferRequest:
        """One that runs this decoder."""
        request = self.graph.create_infer_request()
        for name in (port.any_name for port in self.graph.inputs):
            if is_choice(name):
                request.set_tensor(name, ov.Tensor(np.array([name == choice_of(self.rows)])))
        return request

    def index_of(self, output: str) -> int:
        """Where the graph has an output of the decoder."""
        names = [port.any_name for port in self.graph.outputs]
        return names.index(output_of(output, self.rows))


Decoders = Mapping[int, CompiledDecoder]
"""By the rows of one session that they take."""


def compile_decoders(decoder: ov.Model, weights: WeightFormat, options: EngineOptions) -> Decoders:
    """For `graph_rows`, over one copy of the weights; or one for any pass.

    decoder  of `decoder.DecoderBuilder`
    """
    row_counts = options.graph_rows or (ANY_ROWS,)
    graph = _compiled(build_graph(decoder, row_counts, weights), options)
    threads = PassThreads(thread_limit(), int(graph.get_property(properties.inference_num_threads)))
    weights.memory.unload()
    return {rows: CompiledDecoder(graph, rows, threads, weights.memory) for rows in row_counts}


def pass_dtype(options: EngineOptions) -> Literal["bfloat16", "float32"]:
    """What a pass is computed in. Products by codes of few bits are fastest in float32, even where
    the processor computes in bfloat16."""
    if options.dtype == "float32" or (options.compressed and options.dtype != "bfloat16"):
        return "float32"
    return "bfloat16" if computes_in_bfloat16() or options.dtype == "bfloat16" else "float32"


def kv_type(options: EngineOptions) -> ov.Type:
    """Element type of the KV cache. Where products round their inputs to eight bits, keys and
    values in float16 move a text no further away from the checkpoint's (benchmarks/NOTES.md)."""
    if pass_dtype(options) == "bfloat16":
        return ov.Type.bf16
    rounds = options.compressed and options.dtype != "float32"
    return ov.Type.f16 if rounds else ov.Type.f32


def _compiled(graph: ov.Model, options: EngineOptions) -> ov.CompiledModel:
    """A graph made to run on the processor with the options' precision and most threads."""
    rounded = _ROUNDED_INPUTS_OF_A_DRAFT if options.grows_trees else _ROUNDED_INPUTS
    precision = ov.Type.f32 if pass_dtype(options) == "float32" else ov.Type.bf16
    compiled: ov.CompiledModel = ov.Core().compile_model(
        graph,
        "CPU",
        {
            hint.inference_precision: precision,
            hint.kv_cache_precision: kv_type(options),  # the stock one is eight bits
            hint.performance_mode: hint.PerformanceMode.LATENCY,
            hint.enable_cpu_pinning: False,
            properties.inference_num_threads: options.most_threads,
            properties.streams.num: 1,
            hint.dynamic_quantization_group_size: rounded,
            _PREPARED_CAPACITY: _PREPARED_OPERATORS,
        },
    )
    return compiled

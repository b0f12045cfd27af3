"""The linear layers of a step and nothing else, as the engine itself would run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.engines import CheckpointEngine
from card.engines.architecture import Architecture
from card.engines.layout import rounded_up
from card.engines.torch.engine import TorchEngine
from card.engines.torch.linear import Linear

_SPREAD = 0.25
"""Standard deviation of weights times the root of their inputs: residual sums stay small."""


def shapes_of(a: Architecture) -> list[tuple[int, int]]:
    """(inputs, outputs) of every linear layer of a step, in order."""
    attention = a.heads * a.head_size
    layer = [
        (a.hidden, attention + 2 * a.kv_heads * a.head_size),
        (attention, a.hidden),
        (a.hidden, 2 * a.intermediate),
        (a.intermediate, a.hidden),
    ]
    return [*layer * a.layers, (a.hidden, a.vocabulary)]


def linears_of(engine: CheckpointEngine) -> Callable[[], object]:
    """What runs one row through layers like the engine's, with random weights of their own."""
    rows = rounded_up(1, engine.options.row_multiple)
    if isinstance(engine, TorchEngine):
        return _in_torch(engine.architecture, engine.dtype, rows)
    return _in_openvino(engine, rows)


def _in_torch(a: Architecture, dtype: torch.dtype, rows: int) -> Callable[[], object]:
    layers = [
        (inputs, Linear(torch.randn(outputs, inputs, dtype=dtype)))
        for inputs, outputs in shapes_of(a)
    ]
    states = {inputs: torch.randn(rows, inputs, dtype=dtype) for inputs, _ in layers}

    def run() -> None:
        with torch.inference_mode():
            for inputs, linear in layers:
                linear(states[inputs])

    return run


def _in_openvino(engine: CheckpointEngine, rows: int) -> Callable[[], object]:
    import openvino as ov
    from openvino import opset13 as ops

    from card.engines.checkpoints import DenseMatrix, Matrix, quantised
    from card.engines.openvino.compiled import compile_graph
    from card.engines.openvino.engine import weight_format
    from card.engines.openvino.weights import Activations, GroupedWeights, model_over

    a, options = engine.architecture, engine.options
    weights = weight_format(options, "BF16")  # those of a float16 checkpoint take as long
    bits = 8 if options.dtype == "int8" else 4
    generator = np.random.default_rng(0)

    def linear(states: Any, inputs: int, outputs: int) -> Any:
        drawn = generator.standard_normal((outputs, inputs), np.float32)
        matrix: Matrix = DenseMatrix(drawn * np.float32(_SPREAD / inputs**0.5))
        if isinstance(weights, GroupedWeights):
            matrix = quantised(matrix, bits, options.weight_group)
        return weights.product(Activations(states), matrix)

    # Each layer reads what the one before wrote, as in the decoder; attention gives the query on.
    attention, both = a.heads * a.head_size, 2 * a.kv_heads * a.head_size
    states = hidden = ops.parameter([-1, a.hidden], ov.Type.f32, "states")
    for _ in range(a.layers):
        joint = linear(hidden, a.hidden, attention + both)
        query = ops.variadic_split(joint, ops.constant(-1), ops.constant([attention, both]))
        hidden = ops.add(hidden, linear(query.output(0), attention, a.hidden))
        gate, up = (linear(hidden, a.hidden, a.intermediate) for _ in range(2))
        gated = ops.multiply(ops.swish(gate), up)
        hidden = ops.add(hidden, linear(gated, a.intermediate, a.hidden))
    logits = ops.result(linear(hidden, a.hidden, a.vocabulary))
    compiled = compile_graph(model_over(weights, [logits], [states], "linears"), options)
    request = compiled.create_infer_request()
    row = generator.standard_normal((rows, a.hidden), np.float32)

    def run() -> object:
        return request.infer([row], share_inputs=True)

    return run

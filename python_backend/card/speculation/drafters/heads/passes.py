"""How a head computes: its modules in PyTorch, or the same modules converted to OpenVINO.

A pass takes the keys and values before it as arguments and returns those of its rows, so that both
ways are functions without state.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from card.speculation.drafters.heads.blocks import Turn, attention


class Passes(Protocol):
    """The functions of a head, by the names of its methods."""

    def features(self, states: Tensor) -> Tensor: ...

    def context(self, features: Tensor, turn: Turn) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...

    def run(
        self, inputs: Sequence[Tensor], turn: Turn, sees: Tensor, kept: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """[rows, hidden] of a pass, and keys and values of its rows, in the order of `kept`.

        inputs  [rows, hidden] each, what the head reads
        sees    [layers, rows, entries + rows], what each row sees: entries, and rows of the pass
        kept    keys and values [entries, kv_heads, size] of each layer, keys first
        """


class TorchPasses:
    """In PyTorch."""

    def __init__(self, head: Any) -> None:
        self._head, self._pass = head, _Pass(head)

    def features(self, states: Tensor) -> Tensor:
        features: Tensor = self._head.features(states)
        return features

    def context(self, features: Tensor, turn: Turn) -> Tensor:
        context: Tensor = self._head.context(features, turn)
        return context

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._head.logits(hidden)
        return logits

    def run(
        self, inputs: Sequence[Tensor], turn: Turn, sees: Tensor, kept: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        hidden, *made = self._pass(len(inputs), *inputs, *turn, sees, *kept)
        return hidden, made


class CompiledPasses:
    """In OpenVINO, in float32. Raises `ImportError` where it is not installed."""

    def __init__(self, head: Any, threads: int) -> None:
        """`threads` of a pass; 0: the process's default."""
        import openvino

        a = head.architecture
        makes_blocks = hasattr(head, "context")
        inputs = 1 if makes_blocks else 2
        layers = head.read_layers if makes_blocks else a.layers
        plugin: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
        if threads:
            plugin["INFERENCE_NUM_THREADS"] = threads
        core = openvino.Core()

        def compiled(function: Callable[..., Any], *example: Tensor) -> _Compiled:
            with torch.inference_mode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the tracer: shapes that it takes as constants
                model = openvino.convert_model(_Function(function, head), example_input=example)
            return _Compiled(core.compile_model(model, "CPU", plugin))

        rows, entries = 3, 2
        hidden = torch.zeros(rows, a.hidden)
        turn = torch.zeros(rows, 1, a.rope.rotated(a.head_size))
        entry = torch.zeros(entries, a.kv_heads, a.head_size)
        sees = torch.ones(layers, rows, entries + rows, dtype=torch.bool)
        whole = _Pass(head)
        self._features = compiled(head.features, torch.zeros(rows, head.tapped))
        self._logits = compiled(head.logits, hidden)
        self._context = None
        if makes_blocks:
            self._context = compiled(
                lambda features, *turns: head.context(features, turns), hidden, turn, turn
            )
        self._run = compiled(
            lambda *arguments: whole(inputs, *arguments),
            *[hidden] * inputs, turn, turn, sees, *[entry] * (2 * layers),
        )  # fmt: skip

    def features(self, states: Tensor) -> Tensor:
        return self._features(states)[0]

    def context(self, features: Tensor, turn: Turn) -> Tensor:
        assert self._context is not None
        return self._context(features, *turn)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        return self._logits(hidden)[0]

    def run(
        self, inputs: Sequence[Tensor], turn: Turn, sees: Tensor, kept: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        hidden, *made = self._run(*inputs, *turn, sees, *kept)
        return hidden, made


class _Pass(nn.Module):
    """The head, with the attention of `Passes.run`."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self._head = head

    def forward(self, inputs: int, *arguments: Tensor) -> tuple[Tensor, ...]:
        read, (cosine, sine, sees), kept = (
            arguments[:inputs],
            arguments[inputs : inputs + 3],
            arguments[inputs + 3 :],
        )
        made: list[Tensor] = []

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            made.extend((keys, values))
            before = kept[2 * layer], kept[2 * layer + 1]
            every = torch.cat([before[0], keys]), torch.cat([before[1], values])
            return attention(queries, *every, sees[layer])

        hidden = self._head(*read, (cosine, sine), attend)
        return hidden, *made


class _Function(nn.Module):
    """A function of a head as a module, for the conversion traces modules."""

    def __init__(self, function: Callable[..., Any], head: nn.Module) -> None:
        super().__init__()
        self._function, self._head = function, head

    def forward(self, *arguments: Tensor) -> Any:
        return self._function(*arguments)


class _Compiled:
    """A compiled function of tensors."""

    def __init__(self, model: Any) -> None:
        self._request = model.create_infer_request()
        self._outputs = range(len(model.outputs))

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        arrays = [argument.numpy() for argument in arguments]
        self._request.infer(arrays, share_inputs=True)
        return [
            torch.from_numpy(self._request.get_output_tensor(at).data.copy())
            for at in self._outputs
        ]

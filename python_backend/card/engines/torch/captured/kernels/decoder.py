"""The order of the kernels in a pass: ten launches a layer.

A product leaves partial sums, and what comes next adds them up: there is no launch that only adds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from card.engines.architecture import Architecture
from card.engines.rotary import rotary_tables
from card.engines.torch.captured.kernels.attention import attend
from card.engines.torch.captured.kernels.finishing import (
    gated,
    plain,
    plus_then_norm,
    rotate_and_store,
)
from card.engines.torch.captured.kernels.pages import PagedKeyValueCache
from card.engines.torch.captured.kernels.passes import PathBuffer
from card.engines.torch.captured.kernels.products import SkinnyLinear
from card.engines.torch.weights import LayerWeights, Weights


class KernelDecoder:
    """Weights and code; buffers and KV cache are arguments."""

    def __init__(
        self,
        architecture: Architecture,
        weights: Weights[SkinnyLinear],
        dtype: torch.dtype,
        device: torch.device,
        positions: int,
        taps: Sequence[int] = (),
    ) -> None:
        self.architecture = architecture
        self.taps = taps
        self.dtype = dtype
        self.device = device
        self._weights = weights
        tables = rotary_tables(architecture.rope, architecture.head_size, positions)[:, :, 0]
        self._rotary = torch.from_numpy(tables).to(device, dtype)

    def forward(
        self,
        inputs: PathBuffer,
        kv: PagedKeyValueCache,
        logits: Tensor | None,
        tapped: Tensor | None = None,
    ) -> None:
        """Write keys, values and logits [shape.logits, vocabulary], if any are wanted, and the
        tapped hidden states [shape.rows, numbers] bfloat16, if there are taps."""
        a, weights = self.architecture, self._weights
        found = F.embedding(inputs["tokens"], weights.embedding)
        cosine, sine = self._rotary.index_select(1, inputs["positions"])
        # By the same kernel as every other norm: no library chooses one by the number of rows.
        nothing = torch.zeros(1, *found.shape, dtype=torch.float32, device=found.device)
        first = _needed(weights.layers[0].input_norm)
        hidden, normed = plus_then_norm(nothing, None, found, first, a.norm_epsilon)
        states = [hidden]
        following = [_needed(layer.input_norm) for layer in weights.layers[1:]]
        following.append(weights.norm)
        for index, (layer, next_norm) in enumerate(zip(weights.layers, following, strict=True)):
            queries = rotate_and_store(
                layer.query_key_value.partial(normed),
                layer.query_key_value.bias,
                _norms(layer),
                a.norm_epsilon,
                cosine,
                sine,
                inputs["slots"],
                kv.keys[index],
                kv.values[index],
                a.heads,
            )
            mixed = attend(
                queries,
                kv.keys[index],
                kv.values[index],
                kv.table,
                inputs["positions"],
                inputs["tiles"],
                inputs["lanes"],
                inputs["starts"],
                inputs["paths"],
            )
            hidden, normed = self._added(layer.output, mixed, hidden, _needed(layer.post_norm))
            gate_up = gated(layer.gate_up.partial(normed), layer.gate_up.bias, hidden.dtype)
            hidden, normed = self._added(layer.down, gate_up, hidden, next_norm)
            states.append(hidden)
        if tapped is not None:
            states[-1] = normed  # by the final norm
            torch.cat([states[tap].to(tapped.dtype) for tap in self.taps], dim=-1, out=tapped)
        if logits is not None:
            wanted = normed.index_select(0, inputs["logit_rows"])
            plain(weights.head.partial(wanted), weights.head.bias, logits)

    def _added(
        self, linear: SkinnyLinear, states: Tensor, hidden: Tensor, norm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The residual stream with the layer's product added, and what `norm` makes of it."""
        epsilon = self.architecture.norm_epsilon
        return plus_then_norm(linear.partial(states), linear.bias, hidden, norm, epsilon)


def _needed(norm: Tensor | None) -> Tensor:
    assert norm is not None, "a family without such norms is refused at load"
    return norm


def _norms(layer: LayerWeights[SkinnyLinear]) -> tuple[Tensor, Tensor] | None:
    if layer.query_norm is None or layer.key_norm is None:
        return None
    return layer.query_norm, layer.key_norm

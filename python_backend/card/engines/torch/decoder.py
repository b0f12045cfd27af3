"""The lean Llama-family decoder: one pass over rows of many sessions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from card.engines.architecture import Architecture
from card.engines.layout import Pass, Stretch
from card.engines.rotary import rotary_tables
from card.engines.torch.attention import GroupTensors, attend
from card.engines.torch.kv import FlatDestination, KeyValueCache
from card.engines.torch.linear import Linear
from card.engines.torch.weights import LayerWeights, Weights


def rms_norm(states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square norm of [..., size] states (Zhang and Sennrich, arXiv 1910.07467).

    `F.rms_norm` is a dozen operators on a processor. Layer norm is one, and beside its negative a
    vector has mean zero, so that its layer norm is its root-mean-square norm.
    """
    size = states.shape[-1]
    doubled = torch.cat([states, -states], dim=-1)
    return F.layer_norm(doubled, (2 * size,), weight, None, epsilon)[..., :size]


def rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate `states` [rows, heads, head_size] by tables [rows, 1, head_size]."""
    return torch.addcmul(states * cosine, states.roll(states.shape[-1] // 2, -1), sine)


class Decoder:
    """Weights and code; the KV cache is handed in."""

    def __init__(
        self,
        architecture: Architecture,
        weights: Weights[Linear],
        dtype: torch.dtype,
        positions: int,
    ) -> None:
        self.architecture = architecture
        self._weights = weights
        self._rotary = torch.from_numpy(rotary_tables(architecture, positions)).to(dtype)

    def forward(self, this: Pass, kv: KeyValueCache) -> Tensor:
        """Logits [len(logit_rows), vocabulary] in the engine's dtype; writes keys and values."""
        a, weights = self.architecture, self._weights
        hidden = F.embedding(torch.from_numpy(this.tokens), weights.embedding)
        cosine, sine = self._rotary.index_select(1, torch.from_numpy(this.positions))
        groups = [GroupTensors.of(group) for group in this.groups]
        scatter = None if this.scatter is None else torch.from_numpy(this.scatter)
        stored = kv.flattened(this.destination)
        for index, layer in enumerate(weights.layers):
            mixed = self._attention(index, layer, hidden, cosine, sine, groups, stored, kv)
            if scatter is not None:
                mixed = mixed.index_select(0, scatter)
            hidden = layer.output.plus(mixed, hidden)
            normed = rms_norm(hidden, layer.post_norm, a.norm_epsilon)
            gate_up = layer.gate_up(normed)
            gated = F.silu(gate_up[:, : a.intermediate]).mul_(gate_up[:, a.intermediate :])
            hidden = layer.down.plus(gated, hidden)
        if this.logit_rows is not None:
            if not len(this.logit_rows):
                return hidden.new_empty(0, a.vocabulary)
            hidden = hidden.index_select(0, torch.from_numpy(this.logit_rows))
        return weights.head(rms_norm(hidden, weights.norm, a.norm_epsilon))

    def _attention(
        self,
        index: int,
        layer: LayerWeights[Linear],
        hidden: Tensor,
        cosine: Tensor,
        sine: Tensor,
        groups: list[GroupTensors],
        stored: Stretch | FlatDestination,
        kv: KeyValueCache,
    ) -> Tensor:
        a = self.architecture
        normed = rms_norm(hidden, layer.input_norm, a.norm_epsilon)
        states = layer.query_key_value(normed).view(-1, a.heads + 2 * a.kv_heads, a.head_size)
        rotated = states[:, : a.heads + a.kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            rotated = torch.cat(
                [
                    rms_norm(rotated[:, : a.heads], layer.query_norm, a.norm_epsilon),
                    rms_norm(rotated[:, a.heads :], layer.key_norm, a.norm_epsilon),
                ],
                dim=1,
            )
        rotated = rotate(rotated, cosine, sine)
        query, keys = rotated[:, : a.heads], rotated[:, a.heads :]
        kv.write(index, stored, keys, states[:, a.heads + a.kv_heads :])
        outputs = [
            attend(query, kv.keys[index], kv.values[index], group, a.kv_heads) for group in groups
        ]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

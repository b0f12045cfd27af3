"""The layers that heads share. The names of modules are those of checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from card.engines.architecture import Architecture
from card.engines.torch.decoder import rotate
from card.speculation.drafters.heads.formats import HeadConfig

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Keeps the rows' keys and values and attends: from the layer's number, queries
[rows, heads, size], keys and values [rows, kv_heads, size] to [rows, heads * size]."""
Biases = tuple[bool, bool]
"""Whether attention's inputs and its output have biases."""
Turn = tuple[Tensor, Tensor]
"""Cosines and sines [rows, 1, size] of the rows' positions."""


def among_themselves(_: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The attention of rows that see one another and nothing else; an `Attend`."""
    return attention(queries, keys, values, None)


def attention(queries: Tensor, keys: Tensor, values: Tensor, sees: Tensor | None) -> Tensor:
    """[rows, heads * size], over keys and values [entries, kv_heads, size].

    sees  [rows, entries], which entries each row sees; None: all
    """
    group = queries.shape[1] // keys.shape[1]
    mixed = F.scaled_dot_product_attention(
        queries.transpose(0, 1)[None],
        keys.repeat_interleave(group, 1).transpose(0, 1)[None],
        values.repeat_interleave(group, 1).transpose(0, 1)[None],
        attn_mask=sees,
    )
    return mixed[0].transpose(0, 1).flatten(1)


class Attention(nn.Module):
    """Grouped-query attention over `inputs` numbers a row, with the norms of Qwen 3's heads."""

    def __init__(self, a: Architecture, inputs: int, *, biases: Biases) -> None:
        super().__init__()
        self._shape = a.heads, a.kv_heads, a.head_size
        self.q_proj = nn.Linear(inputs, a.heads * a.head_size, biases[0])
        self.k_proj = nn.Linear(inputs, a.kv_heads * a.head_size, biases[0])
        self.v_proj = nn.Linear(inputs, a.kv_heads * a.head_size, biases[0])
        self.o_proj = nn.Linear(a.heads * a.head_size, a.hidden, biases[1])
        if a.query_key_norm:
            self.q_norm = nn.RMSNorm(a.head_size, a.norm_epsilon)
            self.k_norm = nn.RMSNorm(a.head_size, a.norm_epsilon)

    def forward(self, index: int, states: Tensor, turn: Turn, attend: Attend) -> Tensor:
        heads, _, size = self._shape
        queries = self.q_proj(states).view(-1, heads, size)
        if hasattr(self, "q_norm"):
            queries = self.q_norm(queries)
        mixed = attend(index, rotate(queries, *turn), *self.keys_values(states, turn))
        output: Tensor = self.o_proj(mixed)
        return output

    def keys_values(self, states: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        """Keys and values [rows, kv_heads, size]."""
        _, kv_heads, size = self._shape
        keys = self.k_proj(states).view(-1, kv_heads, size)
        if hasattr(self, "k_norm"):
            keys = self.k_norm(keys)
        return rotate(keys, *turn), self.v_proj(states).view(-1, kv_heads, size)


class Network(nn.Module):
    """A gated network."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self._activation = F.silu if a.activation == "silu" else _gelu
        self.gate_proj = nn.Linear(a.hidden, a.intermediate, bias=False)
        self.up_proj = nn.Linear(a.hidden, a.intermediate, bias=False)
        self.down_proj = nn.Linear(a.intermediate, a.hidden, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        output: Tensor = self.down_proj(
            self._activation(self.gate_proj(states)) * self.up_proj(states)
        )
        return output


def _gelu(states: Tensor) -> Tensor:
    return F.gelu(states, approximate="tanh")


class FirstLayer(nn.Module):
    """EAGLE-3's layer: attention reads a token's embedding beside a state, each normed."""

    def __init__(self, a: Architecture, *, biases: Biases, norm_before_residual: bool) -> None:
        super().__init__()
        self._norm_before_residual = norm_before_residual
        self.input_layernorm = nn.RMSNorm(a.hidden, a.norm_epsilon)
        self.hidden_norm = nn.RMSNorm(a.hidden, a.norm_epsilon)
        self.self_attn = Attention(a, 2 * a.hidden, biases=biases)
        self.post_attention_layernorm = nn.RMSNorm(a.hidden, a.norm_epsilon)
        self.mlp = Network(a)

    def forward(self, embedded: Tensor, hidden: Tensor, turn: Turn, attend: Attend) -> Tensor:
        normed = self.hidden_norm(hidden)
        inputs = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        residual = normed if self._norm_before_residual else hidden
        hidden = residual + self.self_attn(0, inputs, turn, attend)
        output: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class Layer(nn.Module):
    """An ordinary decoder layer."""

    def __init__(self, a: Architecture, index: int, *, biases: Biases) -> None:
        super().__init__()
        self._index = index
        self.input_layernorm = nn.RMSNorm(a.hidden, a.norm_epsilon)
        self.self_attn = Attention(a, a.hidden, biases=biases)
        self.post_attention_layernorm = nn.RMSNorm(a.hidden, a.norm_epsilon)
        self.mlp = Network(a)

    def forward(self, hidden: Tensor, turn: Turn, attend: Attend) -> Tensor:
        normed = self.input_layernorm(hidden)
        hidden = hidden + self.self_attn(self._index, normed, turn, attend)
        output: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


def context_of(layers: nn.ModuleList, features: Tensor, turn: Turn) -> Tensor:
    """[layers, 2, rows, kv_heads, size], keys and values that each layer makes of features."""
    attentions = [cast(Attention, layer.self_attn) for layer in layers]
    return torch.stack([torch.stack(it.keys_values(features, turn)) for it in attentions])


@dataclass(frozen=True)
class HeadShape:
    """
    taps    hidden states of the target that a head reads
    tapped  numbers of these states for one token
    ids     ids that the head ranks
    biases  of its attention
    """

    taps: int
    tapped: int
    ids: int
    biases: Biases = (False, False)


class BlockModel(nn.Module):
    """A head without its embedding. All its layers see the target's states before a block."""

    def __init__(self, config: HeadConfig, a: Architecture, shape: HeadShape) -> None:
        super().__init__()
        self.architecture = a
        self.tapped, self.mask_id = shape.tapped, config.mask_id
        self.places, self.read_layers = config.block, a.layers
        self.fc = nn.Linear(shape.tapped, a.hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(a.hidden, a.norm_epsilon)
        layers = [Layer(a, index, biases=shape.biases) for index in range(a.layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(a.hidden, a.norm_epsilon)
        self.lm_head = nn.Linear(a.hidden, shape.ids, bias=False)

    def features(self, states: Tensor) -> Tensor:
        """[rows, hidden] from the target's states [rows, tapped]."""
        features: Tensor = self.hidden_norm(self.fc(states))
        return features

    def context(self, features: Tensor, turn: Turn) -> Tensor:
        """[layers, 2, rows, kv_heads, size], keys and values made of the target's states."""
        return context_of(self.layers, features, turn)

    def forward(self, rows: Tensor, turn: Turn, attend: Attend) -> Tensor:
        """[rows, hidden] of a block."""
        for layer in self.layers:
            rows = layer(rows, turn, attend)
        output: Tensor = self.norm(rows)
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, ids] from what `forward` returned."""
        logits: Tensor = self.lm_head(hidden)
        return logits

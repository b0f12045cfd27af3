"""SpecFormer (arXiv 2511.20340): a short block from the target's states alone.

One layer reads the states of the text. Its newest row becomes a row for each place of the block; a
second layer, in which these rows see each other, and the output matrix give the tokens. So no token
is read, and a block of states that came late begins with tokens that are known by now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from card.engines.architecture import Architecture
from card.engines.rotary import rotary_tables
from card.speculation.drafters.heads.blocks import (
    Attend,
    HeadShape,
    Layer,
    Turn,
    among_themselves,
    context_of,
)
from card.speculation.drafters.heads.formats import HeadConfig


class SpecFormer(nn.Module):
    """The head; arguments as of `BlockModel`. Its layers: one reads states, one is the block's."""

    reads_tokens = False
    is_aligned = True
    masks, lead = 0, 0
    causal_windows = False
    _turn: Tensor

    def __init__(self, config: HeadConfig, a: Architecture, shape: HeadShape) -> None:
        super().__init__()
        self.architecture = a
        self.tapped, self.mask_id = shape.tapped, config.mask_id
        self.places, self.read_layers = config.block, 1
        width = shape.tapped // shape.taps
        self.norms = nn.ModuleList([nn.RMSNorm(width, a.norm_epsilon) for _ in range(shape.taps)])
        self.fc = nn.Linear(shape.tapped, a.hidden, bias=False)
        self.layers = nn.ModuleList([Layer(a, index, biases=shape.biases) for index in range(2)])
        self.expand = nn.Linear(a.hidden, self.places * a.hidden, bias=False)
        self.norm = nn.RMSNorm(a.hidden, a.norm_epsilon)
        self.lm_head = nn.Linear(a.hidden, shape.ids, bias=False)
        table = torch.from_numpy(rotary_tables(a.rope, a.head_size, self.places))
        self.register_buffer("_turn", table, persistent=False)

    def features(self, states: Tensor) -> Tensor:
        """[rows, hidden] from the target's states [rows, tapped]."""
        parts = states.chunk(len(self.norms), dim=-1)
        normed = [norm(part) for norm, part in zip(self.norms, parts, strict=True)]
        features: Tensor = self.fc(torch.cat(normed, dim=-1))
        return features

    def context(self, features: Tensor, turn: Turn) -> Tensor:
        """[1, 2, rows, kv_heads, size], keys and values made of the target's states."""
        normed = cast(Layer, self.layers[0]).input_layernorm(features)
        return context_of(self.layers[:1], normed, turn)

    def rows(self, newest: Tensor) -> Tensor:
        """The rows of a block, from the newest features [1, hidden]."""
        return newest

    def forward(
        self, rows: Tensor, turn: Turn, attend: Attend, among: Attend = among_themselves
    ) -> Tensor:
        """[rows * places, hidden]: of each row, the places behind its token.

        rows   [rows, hidden] features
        among  the attention between the places of one row
        """
        read = self.layers[0](rows, turn, attend)
        block = self.expand(read).view(-1, self.architecture.hidden)
        turns = self._turn.repeat(1, rows.shape[0], 1, 1)
        output: Tensor = self.norm(self.layers[1](block, (turns[0], turns[1]), among))
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, ids] from what `forward` returned."""
        logits: Tensor = self.lm_head(hidden)
        return logits

    def chain(self, hidden: Tensor, logits: Tensor, text: Sequence[tuple[int, int | None]]) -> None:
        """None: places are predicted independently."""

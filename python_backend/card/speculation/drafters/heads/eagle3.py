"""EAGLE-3 (arXiv 2503.01840): one layer reads a token beside the target's states of the token
before, and predicts the next token. Behind the last known states the layer's own output takes their
place.

P-EAGLE (arXiv 2602.01469) has more layers, and a mask with states of its own: masks behind a token
make a block of tokens in one pass.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from card.engines.architecture import Architecture
from card.speculation.drafters.heads.blocks import Attend, FirstLayer, HeadShape, Layer, Turn
from card.speculation.drafters.heads.formats import HeadConfig


class Eagle3(nn.Module):
    """The head, without its embedding."""

    repeats_features = False
    """Whether a row without states takes the features of the row that it follows, and not what the
    head computed for that row."""

    def __init__(self, config: HeadConfig, a: Architecture, shape: HeadShape) -> None:
        super().__init__()
        self.architecture = a
        self.tapped = shape.tapped
        self._norms_output = config.norm_output
        self.fc = nn.Linear(shape.tapped, a.hidden, bias=False)
        if config.norm_before_fc:
            self.input_norm = nn.RMSNorm(shape.tapped, a.norm_epsilon)
        if config.fc_norm:
            width = shape.tapped // shape.taps
            each = [nn.RMSNorm(width, a.norm_epsilon) for _ in range(shape.taps)]
            self.fc_norm = nn.ModuleList(each)
        first = FirstLayer(a, biases=shape.biases, norm_before_residual=config.norm_before_residual)
        others = [Layer(a, index, biases=shape.biases) for index in range(1, a.layers)]
        self.layers = nn.ModuleList([first, *others])
        self.norm = nn.RMSNorm(a.hidden, a.norm_epsilon)
        self.mask_id = config.mask_id
        if config.mask_id is not None:
            self.mask_hidden = nn.Parameter(torch.zeros(1, 1, shape.tapped))
        self.lm_head = nn.Linear(a.hidden, shape.ids, bias=False)

    def features(self, states: Tensor) -> Tensor:
        """[rows, hidden] from the target's states [rows, tapped]."""
        if hasattr(self, "input_norm"):
            states = self.input_norm(states)
        if hasattr(self, "fc_norm"):
            parts = states.chunk(len(self.fc_norm), dim=-1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            states = torch.cat(normed, dim=-1)
        features: Tensor = self.fc(states)
        return features

    def mask_features(self) -> Tensor | None:
        """[hidden] of a mask; None: the head has none."""
        return None if self.mask_id is None else self.features(self.mask_hidden[0])[0]

    def forward(self, embedded: Tensor, features: Tensor, turn: Turn, attend: Attend) -> Tensor:
        """[rows, hidden], the features of the rows behind these.

        embedded  [rows, hidden] of each row's token
        features  [rows, hidden] of the token before it
        """
        first, *others = self.layers
        hidden: Tensor = first(embedded, features, turn, attend)
        for layer in others:
            hidden = layer(hidden, turn, attend)
        return self.norm(hidden) if self._norms_output else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, ids] from what `forward` returned."""
        logits: Tensor = self.lm_head(hidden if self._norms_output else self.norm(hidden))
        return logits

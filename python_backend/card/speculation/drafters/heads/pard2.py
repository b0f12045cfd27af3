"""PARD-2 (arXiv 2605.08632): a small model of language with masks, which adds a projection of the
target's states of the token before to each token's embedding. A row without such states repeats
those of the row before, as masks do; without any, the model drafts alone."""

from __future__ import annotations

from torch import Tensor, nn

from card.engines.architecture import Architecture
from card.speculation.drafters.heads.blocks import Attend, HeadShape, Layer, Turn
from card.speculation.drafters.heads.formats import HeadConfig


class Pard2(nn.Module):
    """The model, without its embedding; with the interface of `Eagle3`."""

    repeats_features = True

    def __init__(self, config: HeadConfig, a: Architecture, shape: HeadShape) -> None:
        super().__init__()
        self.architecture = a
        self.tapped = shape.tapped
        self.mask_id = config.mask_id
        self._scale = config.scale
        self.target_proj = nn.Linear(shape.tapped, a.hidden, config.projection_bias)
        layers = [Layer(a, index, biases=shape.biases) for index in range(a.layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(a.hidden, a.norm_epsilon)
        self.lm_head = nn.Linear(a.hidden, shape.ids, bias=False)

    def features(self, states: Tensor) -> Tensor:
        """[rows, hidden] from the target's states [rows, tapped]."""
        features: Tensor = self._scale * self.target_proj(states)
        return features

    def mask_features(self) -> Tensor | None:
        """None: a mask repeats the features of the row before."""
        return None

    def forward(self, embedded: Tensor, features: Tensor, turn: Turn, attend: Attend) -> Tensor:
        """[rows, hidden], as of `Eagle3`."""
        hidden = embedded + features
        for layer in self.layers:
            hidden = layer(hidden, turn, attend)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, ids] from what `forward` returned."""
        logits: Tensor = self.lm_head(self.norm(hidden))
        return logits

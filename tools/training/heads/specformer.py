"""SpecFormer (arXiv 2511.20340): the places behind the newest known states.

The first place is the token that the target itself predicts there. While the head serves it is
known, and with a lag further places are; the block gets shorter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from card.speculation.drafters.heads.blocks import attention
from card.speculation.drafters.heads.formats import SPECFORMER, HeadConfig
from training.heads.blocks import BlockTraining


class SpecFormerTraining(BlockTraining):
    kind = SPECFORMER

    @classmethod
    def taps(cls, layers: int) -> tuple[int, ...]:
        return HeadConfig(SPECFORMER, {}, None).taps(layers)

    def _places(self, states: Tensor, newest: Tensor) -> Tensor:
        """[blocks, places, hidden] behind the newest known states, those of these positions."""
        features, kept = self._read(states)
        sees = torch.arange(len(states)) < newest[:, None]
        sees = torch.cat([sees, torch.eye(len(newest), dtype=torch.bool)], dim=1)
        block = torch.arange(len(newest)).repeat_interleave(self.head.places)

        def attend(_: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            every = torch.cat([kept[0, 0], keys]), torch.cat([kept[0, 1], values])
            return attention(queries, *every, sees)

        def among(_: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return attention(queries, keys, values, block[:, None] == block[None])

        hidden: Tensor = self.head(features[newest], self._turn(newest), attend, among)
        return hidden.view(len(newest), self.head.places, -1)

    def _loss(self, text: Tensor, states: Tensor, anchors: Tensor, lag: int) -> Tensor:
        hidden = self._places(states, anchors - 1)
        wanted = text[anchors[:, None] + torch.arange(self.head.places)]
        return self._cross_entropy(self.head.logits(hidden), wanted)

    def _drafted(self, text: Tensor, states: Tensor, anchors: Tensor, lag: int) -> Tensor:
        found = self.head.logits(self._places(states, anchors - 1 - lag)).argmax(-1)
        kept: Tensor = found[:, lag + 1 :]
        missing = self._recipe.steps - kept.shape[1]
        return torch.nn.functional.pad(kept, (0, missing), value=-1)

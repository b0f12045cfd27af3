"""The CTC drafter (arXiv 2412.00061): the loss sums over all slots that collapse to the text."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from card.speculation.drafters.heads.ctc import CtcChain
from card.speculation.drafters.heads.formats import CTC, EAGLE3, HeadConfig
from training.heads.blocks import BlockTraining


class CtcTraining(BlockTraining):
    kind = CTC

    @classmethod
    def taps(cls, layers: int) -> tuple[int, ...]:
        return HeadConfig(EAGLE3, {}, None).taps(layers)

    def _slots(self, states: Tensor, newest: Tensor) -> Tensor:
        """[blocks, slots, ids + 1] logits behind the newest known states, those of these
        positions."""
        features, kept = self._read(states)
        known = features[newest][:, None]
        rows = torch.cat([known, known + self.head.slots], dim=1)
        logits: Tensor = self.head.logits(self._behind(kept, rows, newest, newest)[:, 1:])
        return logits

    def _loss(self, text: Tensor, states: Tensor, anchors: Tensor, lag: int) -> Tensor:
        chances = self._slots(states, anchors - 1).log_softmax(dim=-1)
        wanted = self._labels[text[anchors[:, None] + torch.arange(self.head.places)]]
        lengths = (wanted >= 0).cumprod(dim=1).sum(dim=1)  # up to a token that is not ranked
        slots = torch.full((len(anchors),), chances.shape[1])
        blank = chances.shape[2] - 1
        return F.ctc_loss(
            chances.transpose(0, 1), wanted.clamp(min=0), slots, lengths, blank, zero_infinity=True
        )

    def _drafted(self, text: Tensor, states: Tensor, anchors: Tensor, lag: int) -> Tensor:
        chances = self._slots(states, anchors - 1 - lag).softmax(dim=-1)
        return torch.tensor(
            [
                self._chain(chances[block], text[anchor - lag : anchor + 1])
                for block, anchor in enumerate(anchors.tolist())
            ]
        )

    def _chain(self, chances: Tensor, known: Tensor) -> list[int]:
        """The likeliest tokens behind the known ones, one after another."""
        chain, found = CtcChain(chances), list[int]()
        for token, label in zip(known.tolist(), self._labels[known].tolist(), strict=True):
            chain.take(token, label if label >= 0 else None)
        for _ in range(self._recipe.steps):
            found.append(int(chain.logits().argmax()))
            chain.take(int(self._ranked[found[-1]]), found[-1])
        return found

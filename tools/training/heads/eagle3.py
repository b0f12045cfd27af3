"""EAGLE-3 (arXiv 2503.01840): passes in which a head reads its own states.

The first pass reads every token of a text with the target's states of the token before. In each
further pass row i reads the next token with the state that its own row computed in the pass before,
as the head does while it serves. In pass s the s tokens before the predicted one have no states.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from card.engines.rotary import rotary_tables
from card.speculation.drafters.heads.eagle3 import Eagle3
from card.speculation.drafters.heads.formats import EAGLE3, HeadConfig
from training.heads.chains import Chains, TextRows
from training.heads.files import NO_LABEL, config_of, labels_of, make_head, write_head
from training.heads.kind import Kind, Setup


class Pass(NamedTuple):
    """
    hidden  [rows, hidden] that the head computed
    wanted  [rows] the tokens that they should predict
    chains  a row each, and what each has read
    """

    hidden: Tensor
    wanted: Tensor
    chains: Chains


def unrolled(
    head: Eagle3, embedding: Tensor, text: Tensor, states: Tensor, steps: int
) -> Iterator[Pass]:
    """The passes of a text. Later passes have fewer rows.

    text    [tokens] int64
    states  [tokens, numbers]
    """
    a, count = head.architecture, len(text) - 2
    table = torch.from_numpy(rotary_tables(a.rope, a.head_size, count + steps))
    first = TextRows()
    chains = Chains(first, torch.arange(1, count + 1))
    hidden = head.features(states[:count])
    for step in range(min(steps, count)):
        rows = count - step
        chains.keep(rows)
        turn = table[:, step : step + rows]
        tokens = text[1 + step : 1 + step + rows]
        attend = chains.attend if step else first.attend
        hidden = head(embedding[tokens], hidden[:rows], (turn[0], turn[1]), attend)
        yield Pass(hidden, text[2 + step : 2 + step + rows], chains)


class Eagle3Training(Kind):
    """A head of one layer. It begins with the target's own output rows for the ids it ranks."""

    head: Eagle3

    def __init__(self, setup: Setup) -> None:
        self._recipe, self._target, self._folder = setup.recipe, setup.target, setup.folder
        a = setup.target.architecture
        self._ranked = setup.most_frequent(self._recipe.ids)
        self._said = self.config(setup, len(self._ranked))
        self.head = make_head(self._said, setup.target, self._ranked, setup.folder)
        self._labels = labels_of(self._ranked, a.vocabulary)

    def config(self, setup: Setup, ids: int) -> dict[str, Any]:
        """The configuration of a head that ranks so many ids."""
        a = setup.target.architecture
        return config_of(EAGLE3, a, self.taps(a.layers), ids, setup.recipe.steps)

    @classmethod
    def taps(cls, layers: int) -> tuple[int, ...]:
        return HeadConfig(EAGLE3, {}, None).taps(layers)

    def loss(self, text: Tensor, states: Tensor, random: np.random.Generator) -> Tensor:
        loss, weight = torch.zeros(()), 1.0
        for hidden, wanted, _ in self._passes(text, states, self._recipe.steps):
            logits = self.head.logits(hidden)
            found = F.cross_entropy(logits, self._labels[wanted], ignore_index=NO_LABEL)
            loss, weight = loss + weight * found, weight * self._recipe.step_weight
        return loss

    def right(self, text: Tensor, states: Tensor, lags: int) -> Tensor:
        steps = self._recipe.steps
        passes = self._passes(text, states, lags + steps - 1)
        rows = len(text) - 1 - lags - steps  # which every pass has
        right = [
            self.head.logits(hidden[:rows]).argmax(-1) == self._labels[wanted[:rows]]
            for hidden, wanted, _ in passes
        ]
        return torch.stack([torch.stack(right[lag : lag + steps], -1) for lag in range(lags)])

    def write(self) -> None:
        write_head(self.head, self._said, self._ranked, self._folder)

    def _passes(self, text: Tensor, states: Tensor, steps: int) -> Iterator[Pass]:
        return unrolled(self.head, self._target.embedding, text, states, steps)

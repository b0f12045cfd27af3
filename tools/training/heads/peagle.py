"""P-EAGLE (arXiv 2602.01469), which stands for ParallelSpec (arXiv 2410.05589): masks behind a
token make a block in one pass.

The passes over a text are EAGLE-3's. Behind some rows of one of them stand masks, so a block begins
behind tokens with states and behind tokens without.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from card.engines.rotary import rotary_tables
from card.speculation.drafters.heads.formats import PEAGLE
from training.heads.eagle3 import Eagle3Training, Pass
from training.heads.files import NO_LABEL, config_of
from training.heads.kind import Setup
from training.heads.recipe import HeadRecipe


class PEagleRecipe(HeadRecipe):
    """
    layers      of the head
    chains      chains of masks behind a window
    most_late   tokens without states before a chain, at most
    """

    layers: int = Field(2, ge=1)
    chains: int = Field(64, ge=1)
    most_late: int = Field(4, ge=0)


class PEagleTraining(Eagle3Training):
    """A head of several layers with one mask, an id that no text holds."""

    recipe = PEagleRecipe

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        a = self.head.architecture
        longest = setup.recipe.window + setup.recipe.lags + setup.recipe.steps
        self._rotary = torch.from_numpy(rotary_tables(a.rope, a.head_size, longest))

    def config(self, setup: Setup, ids: int) -> dict[str, Any]:
        a = setup.target.architecture
        said = config_of(PEAGLE, a, self.taps(a.layers), ids, setup.recipe.steps)
        said["transformer_layer_config"]["num_hidden_layers"] = setup.recipe.layers
        return said | {"mask_token_id": setup.unused_id()}

    def loss(self, text: Tensor, states: Tensor, random: np.random.Generator) -> Tensor:
        late = int(random.integers(0, self._recipe.most_late + 1))
        loss = torch.zeros(())
        for step, read in enumerate(self._passes(text, states, late + 1)):
            loss = loss + self._cross_entropy(read.hidden, read.wanted)
            if step == late:
                rows = len(read.wanted) - self._recipe.steps
                drawn = random.permutation(rows)[: self._recipe.chains]
                hidden, wanted = self._block(read, text, step, torch.from_numpy(drawn))
                loss = loss + self._cross_entropy(hidden.flatten(0, 1), wanted.flatten())
        return loss / (late + 2)

    def right(self, text: Tensor, states: Tensor, lags: int) -> Tensor:
        rows = len(text) - 1 - lags - self._recipe.steps
        chosen, found = torch.arange(0, rows, 8), []
        for step, read in enumerate(self._passes(text, states, lags)):
            hidden, wanted = self._block(read, text, step, chosen)
            hidden = torch.cat([read.hidden[chosen][:, None], hidden], dim=1)
            wanted = torch.cat([read.wanted[chosen][:, None], wanted], dim=1)
            found.append(self.head.logits(hidden).argmax(-1) == self._labels[wanted])
        return torch.stack(found)

    def _cross_entropy(self, hidden: Tensor, wanted: Tensor) -> Tensor:
        logits = self.head.logits(hidden).float()
        return F.cross_entropy(logits, self._labels[wanted], ignore_index=NO_LABEL)

    def _block(self, read: Pass, text: Tensor, step: int, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Read masks behind these rows of a pass: hidden states [rows, masks, hidden], and the
        tokens that they should predict."""
        masks, mask_id = self._recipe.steps - 1, self.head.mask_id
        features = self.head.mask_features()
        assert mask_id is not None
        assert features is not None
        count = len(chosen) * masks
        behind = chosen[:, None] + torch.arange(1, masks + 1)
        turn = self._rotary[:, (behind + step).flatten()]
        hidden = self.head(
            self._target.embedding[mask_id].expand(count, -1),
            features.expand(count, -1),
            (turn[0], turn[1]),
            read.chains.fork(chosen).attend,
        )
        return hidden.view(len(chosen), masks, -1), text[2 + step + behind]

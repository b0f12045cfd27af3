"""DSpark (arXiv 2607.05147) and DFlash (arXiv 2602.06036): blocks of masks.

A block begins with the tokens before its anchor that have no states yet, as it does while the head
serves; half of the windows have such tokens. The serial head of DSpark reads the text's own token
before each place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from card.engines.architecture import Architecture
from card.speculation.drafters.heads.formats import DFLASH, DSPARK, OWN_FORMAT
from training.heads.blocks import BlockRecipe, BlockTraining


class DSparkRecipe(BlockRecipe):
    """
    late         share of windows in which blocks lack the newest states
    most_late    tokens without states, at most
    markov_rank  rank of the serial head
    """

    late: float = Field(0.5, ge=0, le=1)
    most_late: int = Field(16, ge=1)
    markov_rank: int = Field(64, ge=1)


class DSparkTraining(BlockTraining):
    recipe = DSparkRecipe
    kind = DSPARK

    @classmethod
    def taps(cls, layers: int) -> tuple[int, ...]:
        """Three taps spread as DFlash spreads them: from the second layer to the last but two."""
        return (2, layers // 2, layers - 2)

    def _late(self, random: np.random.Generator) -> int:
        recipe = self._recipe
        return int(random.integers(1, recipe.most_late + 1)) if random.random() < recipe.late else 0

    def _config_of(self, a: Architecture, ids: int) -> dict[str, Any]:
        config, recipe = super()._config_of(a, ids), self._recipe
        config["speculators_model_type"] = config["speculators_config"]["algorithm"] = self.kind
        del config[OWN_FORMAT]
        config["transformer_layer_config"]["model_type"] = "qwen3"
        config["mask_token_id"] = a.vocabulary - 1
        if self.kind == DFLASH:
            return config | {"architectures": ["DFlashDraftModel"], "sample_from_anchor": False}
        return config | {
            "architectures": ["DSparkDraftModel"],
            "sample_from_anchor": True,
            "block_size": recipe.steps,
            "markov_rank": recipe.markov_rank,
            "markov_head_type": "vanilla",
            "enable_confidence_head": False,
        }

    def _places(self, text: Tensor, states: Tensor, anchors: Tensor, lag: int) -> Tensor:
        """[blocks, steps, hidden] of the places behind the anchors."""
        _, kept = self._read(states)
        masks = torch.full((len(anchors), self.head.masks), self.head.mask_id)
        known = text[anchors[:, None] + torch.arange(-lag, 1)]
        rows = self._target.embedding[torch.cat([known, masks], dim=1)]
        hidden = self._behind(kept, rows, anchors - lag, anchors - lag)
        return hidden[:, lag + self.head.lead :]

    def _loss(self, text: Tensor, states: Tensor, anchors: Tensor, lag: int) -> Tensor:
        hidden = self._places(text, states, anchors, lag)
        logits = self.head.logits(hidden)
        wanted = anchors[:, None] + torch.arange(1, self._recipe.steps + 1)
        if self.kind == DSPARK:
            logits = logits + self._serial(text[wanted - 1].flatten(), hidden.flatten(0, 1)).view(
                logits.shape
            )
        return self._cross_entropy(logits, text[wanted])

    def _drafted(self, text: Tensor, states: Tensor, anchors: Tensor, lag: int) -> Tensor:
        hidden = self._places(text, states, anchors, lag)
        logits = self.head.logits(hidden)
        if self.kind == DFLASH:
            found: Tensor = logits.argmax(-1)
            return found
        ids, before, chosen = torch.from_numpy(self._ranked), text[anchors], list[Tensor]()
        for place in range(logits.shape[1]):
            more = self._serial(before, hidden[:, place])
            chosen.append((logits[:, place] + more).argmax(-1))
            before = ids[chosen[-1]]
        return torch.stack(chosen, dim=1)

    def _serial(self, before: Tensor, hidden: Tensor) -> Tensor:
        """[rows, ids] that the serial head adds behind the tokens `before` [rows]."""
        head = self.head.markov_head
        added: Tensor = head(head.begin(len(before)), before, hidden)[1]
        return added


class DFlashTraining(DSparkTraining):
    kind = DFLASH

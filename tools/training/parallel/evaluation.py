"""Counts the accepted tokens of a block: made in one pass, and made step by step.

The target's texts are held out. A greedy draft's block behind a token is accepted up to its first
token that differs from the text, so both counts follow from what the draft says along the text.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from training.parallel.draft import ParallelDraft
from training.parallel.layout import Batch, Chains
from training.parallel.recipe import ParallelRecipe


@dataclass(frozen=True)
class Accepted:
    """Figures of held-out texts.

    one_pass      tokens of a block that are accepted, made in one pass
    step_by_step  the same with a pass for each token
    by_place      share of the block's tokens that equal the text's, by place
    """

    one_pass: float
    step_by_step: float
    by_place: list[float]

    def as_dict(self) -> dict[str, object]:
        return {name: _rounded(value) for name, value in asdict(self).items()}


@torch.inference_mode()
def evaluate(draft: ParallelDraft, texts: Batch, recipe: ParallelRecipe) -> Accepted:
    """Evaluate a draft on ``texts``, int64 [texts, tokens]."""
    block = recipe.block
    last = texts.shape[1] - block - 1
    anchors = np.unique(np.linspace(0, last, recipe.evaluation_anchors, dtype=np.int64))
    chains = Chains(np.tile(anchors, block - 1), np.repeat(np.arange(1, block), len(anchors)))
    in_one, in_steps = [], []
    for first in range(0, len(texts), recipe.windows):
        tokens = torch.from_numpy(texts[first : first + recipe.windows]).to(draft.masks.device)
        window = tokens.shape[1]
        hidden = draft.hidden(tokens, [chains] * len(tokens))
        text_rows = _right(draft, hidden[:, : window - 1], tokens[:, 1:])
        wanted = torch.from_numpy(chains.wanted).to(tokens.device)
        masks = _right(draft, hidden[:, window:], tokens[:, wanted])
        masks = masks.reshape(len(tokens), block - 1, len(anchors))
        in_one.append(torch.cat([text_rows[:, None, anchors], masks], dim=1))
        steps = [text_rows[:, anchors + place] for place in range(block)]
        in_steps.append(torch.stack(steps, dim=1))
    one, steps_of_all = torch.cat(in_one), torch.cat(in_steps)
    return Accepted(
        float(one.cumprod(dim=1).sum(dim=1).float().mean()),
        float(steps_of_all.cumprod(dim=1).sum(dim=1).float().mean()),
        one.float().mean(dim=(0, 2)).tolist(),
    )


def _right(draft: ParallelDraft, hidden: Tensor, wanted: Tensor) -> Tensor:
    """Whether the likeliest id of each row is the wanted one, int64 0 or 1."""
    ranks = draft.ranks(wanted)
    best = torch.stack([draft.logits(rows).argmax(dim=-1) for rows in hidden])
    return (best == ranks).long()


def _rounded(value: object) -> object:
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value

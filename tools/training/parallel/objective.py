"""The loss of one step: masks predict the target's tokens, text rows keep what the draft knew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.batches import Batch
from training.parallel.draft import ParallelDraft
from training.parallel.layout import Chains, choose_chains, masks_of_places
from training.parallel.recipe import ParallelRecipe


@dataclass(frozen=True)
class Losses:
    """Losses of a step in nats: cross-entropy of the masks' tokens, divergence of the held rows.

    rows  rows of the pass, the texts' and the masks'
    """

    masks: Tensor
    held: Tensor
    rows: int


def losses_of(
    draft: ParallelDraft,
    teacher: ParallelDraft,
    texts: Batch,
    recipe: ParallelRecipe,
    generator: np.random.Generator,
) -> Losses:
    """One pass over ``texts``, int64 [windows, tokens].

    teacher  the draft before it was tuned. It says how far a chain gets step by step, and its
             distribution is what the text rows keep
    """
    tokens = torch.from_numpy(texts).to(draft.masks.device)
    with torch.no_grad():
        known = teacher.hidden(tokens)
        likely = _likely(teacher, known, tokens)
    counts = masks_of_places(recipe.anchors, recipe.block - 1, recipe.keep, recipe.keep_least)
    chains = [choose_chains(row, counts, generator) for row in likely]
    hidden = draft.hidden(tokens, chains)
    window = tokens.shape[1]
    wanted = torch.from_numpy(np.stack([of.wanted for of in chains])).to(tokens.device)
    labels = draft.ranks(tokens.gather(1, wanted))
    logits = draft.logits(hidden[:, window:])
    masks = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    held = _held(draft, teacher, hidden, known, recipe, generator)
    return Losses(masks, held, hidden.shape[0] * hidden.shape[1])


def _held(
    draft: ParallelDraft,
    teacher: ParallelDraft,
    hidden: Tensor,
    known: Tensor,
    recipe: ParallelRecipe,
    generator: np.random.Generator,
) -> Tensor:
    """Mean KL from the teacher to the draft at random rows of the texts."""
    if not recipe.held_rows:
        return hidden.new_zeros(())
    window = known.shape[1]
    rows = torch.from_numpy(
        np.stack([generator.permutation(window)[: recipe.held_rows] for _ in known])
    ).to(known.device)[..., None]
    with torch.no_grad():
        wanted = teacher.logits(known.gather(1, rows.expand(-1, -1, known.shape[2])))
        wanted = wanted.log_softmax(dim=-1)
    given = draft.logits(hidden.gather(1, rows.expand(-1, -1, hidden.shape[2])))
    given = given.log_softmax(dim=-1)
    return F.kl_div(given.flatten(0, 1), wanted.flatten(0, 1), reduction="batchmean", log_target=True)


def _likely(teacher: ParallelDraft, known: Tensor, tokens: Tensor) -> np.ndarray:
    """Probability that the teacher gave to each token [windows, tokens]; 1 for the first."""
    log_probabilities = torch.empty(tokens.shape, dtype=torch.float32)
    log_probabilities[:, 0] = 0
    ranks = teacher.ranks(tokens)
    for row, (states, of) in enumerate(zip(known, ranks, strict=True)):
        wanted = of[1:]
        loss = F.cross_entropy(
            teacher.logits(states[:-1]), wanted.clamp(min=0), reduction="none"
        )
        log_probabilities[row, 1:] = torch.where(wanted < 0, torch.full_like(loss, -20), -loss)
    return log_probabilities.exp().double().numpy()

"""The loss of one step: masks predict the target's tokens, text rows keep what the draft knew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from training.parallel.draft import ParallelDraft
from training.parallel.layout import Batch, choose_chains, masks_of_places
from training.parallel.recipe import ParallelRecipe


@dataclass(frozen=True)
class Losses:
    """Losses of a step in nats: of the masks' tokens, and of the held rows.

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

    teacher  the draft before it was tuned. It says how far a chain gets step by step, its
             distribution is what the text rows keep, and what a mask sees in part: the teacher
             knows the tokens before the mask's
    """
    tokens = torch.from_numpy(texts).to(draft.masks.device)
    with torch.no_grad():
        known = teacher.hidden(tokens)
        expected = teacher.logits(known).log_softmax(dim=-1)
        likely = _likely(expected, teacher.ranks(tokens))
    counts = masks_of_places(recipe.anchors, recipe.block - 1, recipe.keep, recipe.keep_least)
    chains = [choose_chains(row, counts, generator) for row in likely]
    hidden = draft.hidden(tokens, chains)
    window = tokens.shape[1]
    wanted = torch.from_numpy(np.stack([of.wanted for of in chains])).to(tokens.device)
    labels = draft.ranks(tokens.gather(1, wanted))
    given = draft.logits(hidden[:, window:]).log_softmax(dim=-1).flatten(0, 1)
    ranked = (labels >= 0).sum().clamp(min=1)
    masks = F.nll_loss(given, labels.flatten(), ignore_index=-100, reduction="sum") / ranked
    if recipe.soft_share:
        rows = torch.arange(len(expected), device=tokens.device)[:, None]
        soft = _kl(expected[rows, wanted - 1].flatten(0, 1), given)
        masks = (1 - recipe.soft_share) * masks + recipe.soft_share * soft
    held = _held(draft, expected, hidden, recipe, generator)
    return Losses(masks, held, hidden.shape[0] * hidden.shape[1])


def _held(
    draft: ParallelDraft,
    expected: Tensor,
    hidden: Tensor,
    recipe: ParallelRecipe,
    generator: np.random.Generator,
) -> Tensor:
    """Mean KL from the teacher's log-probabilities [windows, tokens, ranked] to the draft's at
    random rows of the texts."""
    if not recipe.held_rows:
        return hidden.new_zeros(())
    windows, window = expected.shape[:2]
    places = [generator.permutation(window)[: recipe.held_rows] for _ in range(windows)]
    places_on = torch.from_numpy(np.stack(places)).to(hidden.device)
    rows = torch.arange(windows, device=hidden.device)[:, None]
    given = draft.logits(hidden[rows, places_on]).log_softmax(dim=-1)
    return _kl(expected[rows, places_on].flatten(0, 1), given.flatten(0, 1))


def _kl(wanted: Tensor, given: Tensor) -> Tensor:
    """Mean KL of rows of log-probabilities [rows, ranked]."""
    return F.kl_div(given, wanted, reduction="batchmean", log_target=True)


def _likely(expected: Tensor, ranks: Tensor) -> npt.NDArray[np.float64]:
    """Probability that the teacher gave to each token [windows, tokens]; 1 for the first, 0 for an
    id that it does not rank."""
    found = expected[:, :-1].gather(2, ranks[:, 1:, None].clamp(min=0))[..., 0].exp()
    found = torch.where(ranks[:, 1:] < 0, torch.zeros_like(found), found)
    first = torch.ones_like(found[:, :1])
    return torch.cat([first, found], dim=1).double().cpu().numpy()

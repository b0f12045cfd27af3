"""Teaches the draft the target's distribution, on texts of the target, the corpus and the draft.

While a pair serves, the draft reads the target's own text and, while it runs ahead, its own
candidates. Corpus text alone would leave it unprepared for the target's habits and repetitions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from training.batches import corpus_batch, text_batch
from training.decoding import Texts
from training.divergences import Divergence
from training.progress import Show, silent
from training.recipe import Distillation
from training.tokenization import END_OF_TEXT, Tokens

OwnTexts = npt.NDArray[np.int32]


def write_own_texts(
    target: PreTrainedModel,
    tokens: Tokens,
    recipe: Distillation,
    context: int,
    seed: int,
    show: Show = silent,
) -> OwnTexts:
    """Let the target continue corpus prefixes; int32 [texts, context + 1]."""
    generator = np.random.default_rng((seed, recipe.texts))
    noise = torch.Generator(device=target.device).manual_seed(seed)
    beginnings = np.flatnonzero(np.asarray(tokens) == END_OF_TEXT)
    texts = np.empty((recipe.texts, context + 1), dtype=np.int32)
    for first in range(0, recipe.texts, recipe.generation_batch):
        rows = range(first, min(first + recipe.generation_batch, recipe.texts))
        length = int(generator.integers(recipe.shortest_prefix, recipe.longest_prefix + 1))
        prefixes = [
            _prefix(tokens, beginnings if row % 2 else None, length, generator) for row in rows
        ]
        temperatures = torch.tensor([_temperature(recipe, row) for row in rows])
        texts[first : rows.stop] = _continued(target, prefixes, temperatures, context + 1, noise)
        show(rows.stop / recipe.texts, f"{rows.stop} texts")
    return texts


def mixed_batch(
    own: OwnTexts, tokens: Tokens, step: int, batch: int, share: float, seed: int
) -> npt.NDArray[np.int64]:
    """One step's sequences, int64 [batch, context + 1]: ``share`` of them the target's own."""
    own_rows = round(share * batch)
    parts = []
    if own_rows:
        parts.append(text_batch(own, step, own_rows, seed))
    if own_rows < batch:
        parts.append(corpus_batch(tokens, step, batch - own_rows, own.shape[1] - 1, seed))
    return np.concatenate(parts)


def write_draft_texts(
    draft: PreTrainedModel,
    tokens: Tokens,
    recipe: Distillation,
    texts: int,
    context: int,
    seed: tuple[int, int],
) -> tuple[npt.NDArray[np.int64], int]:
    """Let the draft continue corpus prefixes at temperature 1, as on-policy distillation wants.

    Returns int64 [texts, prefix + at most ``draft_tokens``] and the length of the prefixes.
    """
    generator = np.random.default_rng(seed)
    noise = torch.Generator(device=draft.device).manual_seed(int(generator.integers(2**62)))
    length = int(generator.integers(recipe.shortest_prefix, recipe.longest_prefix + 1))
    prefixes = [_prefix(tokens, None, length, generator) for _ in range(texts)]
    end = min(length + recipe.draft_tokens, context + 1)
    written = _continued(draft, prefixes, torch.ones(texts), end, noise)
    return written.astype(np.int64), length


def distance(
    target: nn.Module, draft: nn.Module, batch: Tensor, divergence: Divergence, prefix: int = 1
) -> Tensor:
    """Mean ``divergence`` of the predictions for the tokens behind the first ``prefix``.

    ``batch`` is int64 [sequences, tokens]; the last token of each is not read.
    """
    read = batch[:, :-1]
    with torch.no_grad():
        wanted = target(input_ids=read, use_cache=False).logits[:, prefix - 1 :].float()
    given = draft(input_ids=read, use_cache=False).logits[:, prefix - 1 :].float()
    return divergence.between(wanted.log_softmax(dim=-1), given.log_softmax(dim=-1)).mean()


def _temperature(recipe: Distillation, row: int) -> float:
    if row < recipe.greedy_share * recipe.texts:
        return 0.0
    return recipe.temperatures[row % len(recipe.temperatures)]


def _prefix(
    tokens: Tokens,
    places: npt.NDArray[np.int64] | None,
    length: int,
    generator: np.random.Generator,
) -> list[int]:
    """``length`` tokens of the corpus, from one of ``places`` or from anywhere."""
    last = len(tokens) - length
    if places is not None and len(possible := places[places <= last]):
        start = int(generator.choice(possible))
    else:
        start = int(generator.integers(last + 1))
    return [int(token) for token in tokens[start : start + length]]


def _continued(
    target: PreTrainedModel,
    prefixes: Sequence[Sequence[int]],
    temperatures: Tensor,
    length: int,
    generator: torch.Generator,
) -> OwnTexts:
    """Continue each prefix to ``length`` tokens; int32 [texts, length]. 0 is greedy."""
    columns = [torch.tensor(prefixes, device=target.device)]
    temperatures = temperatures.to(target.device)[:, None]
    sampled = temperatures > 0
    scale = torch.where(sampled, temperatures, torch.ones_like(temperatures))
    room = length - len(prefixes[0])
    texts = Texts(target, prefixes, room)
    for written in range(1, room + 1):
        exponential = torch.empty_like(texts.logits).exponential_(generator=generator)
        scores = texts.logits / scale
        chosen = torch.where(sampled, scores - exponential.log(), scores).argmax(dim=-1)
        columns.append(chosen[:, None])
        if written < room:
            texts.append(chosen)
    written_texts: OwnTexts = torch.cat(columns, dim=1).int().cpu().numpy()
    return written_texts

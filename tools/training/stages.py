"""The stages of making a pair, each one from the files of the stages before it.

``corpus`` → ``tokenizer`` → ``target`` and ``draft`` → ``distil`` → ``evaluate``
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from bench.prompts import read_prompts
from training import architecture, corpus, tokenization
from training.agreement import (
    Agreement,
    follow,
    next_token_loss,
    summarize,
    validation_loss,
)
from training.batches import corpus_batch
from training.compute import Compute
from training.distillation import (
    OwnTexts,
    distance,
    mixed_batch,
    write_draft_texts,
    write_own_texts,
)
from training.draft_vocabulary import write_draft_vocabulary
from training.fitting import fit
from training.progress import Show, silent
from training.recipe import Recipe
from training.workplace import Workplace

TEMPERATURES = (0.0, 0.8)

_TRAIN_TOKENS, _HELD_OUT_TOKENS = "train.npy", "held_out.npy"
_VALIDATION_SEQUENCES = 64


@dataclass(frozen=True)
class Evaluation:
    """The figures of a pair. Losses are nats per token; None where no text was held out."""

    target_parameters: int
    draft_parameters: int
    prompts: int
    target_loss: float | None
    draft_loss: float | None
    agreement: list[Agreement]


def make_tokenizer(place: Workplace, recipe: Recipe) -> tuple[int, int]:
    """Train the tokenizer, encode the corpus; returns the tokens to train on and held out."""
    tokenizer = tokenization.train_tokenizer(
        corpus.texts(place.corpus, corpus.TRAIN), recipe.vocabulary
    )
    tokenization.save_tokenizer(tokenizer, place.tokenizer)
    return encode(place)


def encode(place: Workplace) -> tuple[int, int]:
    """Encode the corpus; returns the tokens to train on and held out."""
    tokenizer = tokenization.load_tokenizer(place.tokenizer)
    train, held_out = (
        tokenization.encode_corpus(tokenizer, corpus.texts(place.corpus, name), place.corpus / to)
        for name, to in ((corpus.TRAIN, _TRAIN_TOKENS), (corpus.HELD_OUT, _HELD_OUT_TOKENS))
    )
    return train, held_out


def train_model(
    place: Workplace,
    recipe: Recipe,
    role: str,
    compute: Compute,
    show: Show = silent,
) -> list[float]:
    """Train ``target`` or ``draft`` on the corpus and write its directory; returns the losses.

    A draft is also kept as it is now, for `distil`. What was made of a former target is removed.
    """
    tokens = tokenization.load_tokens(place.corpus / _TRAIN_TOKENS)
    training = recipe.target_training if role == "target" else recipe.draft_training
    seed = _seed(recipe, role)
    model = _fresh(place, recipe, role, compute)

    def loss_of_step(step: int) -> torch.Tensor:
        batch = corpus_batch(tokens, step, training.batch, recipe.context, seed)
        return next_token_loss(model, torch.from_numpy(batch).to(compute.device))

    losses = fit(model, loss_of_step, training, compute, show)
    model.cpu()
    if role == "target":
        place.own_texts.unlink(missing_ok=True)
    else:
        architecture.save(model, place.tokenizer, place.undistilled)
    architecture.save(model, place.tokenizer, place.model(role))
    return losses


def own_texts(
    place: Workplace,
    recipe: Recipe,
    compute: Compute,
    show: Show = silent,
) -> OwnTexts:
    """The texts that the target wrote for distillation, written now if they were not yet."""
    if not place.own_texts.is_file():
        target = architecture.load(place.model("target"), compute.device)
        tokens = tokenization.load_tokens(place.corpus / _TRAIN_TOKENS)
        with compute.autocast():
            texts = write_own_texts(
                target,
                tokens,
                recipe.distillation,
                recipe.context,
                _seed(recipe, "own texts"),
                show,
            )
        save_file({"texts": texts}, place.own_texts)
    return load_file(place.own_texts)["texts"]


def distil(
    place: Workplace,
    recipe: Recipe,
    compute: Compute,
    show: Show = silent,
) -> list[float]:
    """Distil the draft on the target's texts; writes its directory, returns the losses.

    Raises:
        FileNotFoundError: target or draft were not trained yet.
    """
    draft = architecture.load(place.undistilled, compute.device)
    texts = own_texts(place, recipe, compute)
    tokens = tokenization.load_tokens(place.corpus / _TRAIN_TOKENS)
    training, chosen = recipe.distillation_training, recipe.distillation
    on_policy = round(chosen.on_policy_share * training.batch)
    seed = _seed(recipe, "distil")
    target = architecture.load(place.model("target"), compute.device)

    def distance_on(batch: npt.NDArray[np.int64], prefix: int = 1) -> torch.Tensor:
        """The divergence on a part of the batch, by that part's share of it."""
        on_device = torch.from_numpy(batch).to(compute.device)
        share = len(batch) / training.batch
        return share * distance(target, draft, on_device, chosen.divergence, prefix)

    def loss_of_step(step: int) -> torch.Tensor:
        parts = []
        if off_policy := training.batch - on_policy:
            parts.append(
                distance_on(mixed_batch(texts, tokens, step, off_policy, chosen.own_share, seed))
            )
        if on_policy:
            parts.append(
                distance_on(
                    *write_draft_texts(
                        draft, tokens, chosen, on_policy, recipe.context, (seed, step)
                    )
                )
            )
        return torch.stack(parts).sum()

    losses = fit(draft, loss_of_step, training, compute, show)
    folder = place.model("draft")
    architecture.save(draft.cpu(), place.tokenizer, folder)
    size = draft.config.vocab_size
    write_draft_vocabulary(texts, size, recipe.distillation.ranked_share, folder)
    return losses


def evaluate(
    target_folder: Path,
    draft_folder: Path,
    prompts: Path,
    held_out: Path | None,
    device: torch.device,
    limit: int | None = None,
    max_tokens: int = 128,
    seed: int = 0,
    show: Show = silent,
) -> Evaluation:
    """Measure a draft beside its target, in float32; writes nothing.

    ``held_out`` is a JSONL file of documents as ``corpus.gather`` writes it; its losses are
    taken over at most 64 windows of half the positions, at most 512 tokens each.
    """
    target, draft = (architecture.load(folder, device) for folder in (target_folder, draft_folder))
    tokenizer = tokenization.load_tokenizer(target_folder)
    found = read_prompts(prompts, tokenizer, limit)
    ids = [[tokenization.END_OF_TEXT, *prompt.tokens] for prompt in found]
    agreement = [
        summarize(follow(target, draft, ids, max_tokens, temperature, seed, show), temperature)
        for temperature in TEMPERATURES
    ]
    losses: list[float | None] = [None, None]
    if held_out is not None:
        tokens = _encoded(tokenizer, held_out)
        context = min(512, target.config.max_position_embeddings // 2)
        losses = [
            validation_loss(model, tokens, context, _VALIDATION_SEQUENCES, device)
            for model in (target, draft)
        ]
    return Evaluation(
        target_parameters=architecture.parameters(target),
        draft_parameters=architecture.parameters(draft),
        prompts=len(ids),
        target_loss=losses[0],
        draft_loss=losses[1],
        agreement=agreement,
    )


def _fresh(place: Workplace, recipe: Recipe, role: str, compute: Compute) -> PreTrainedModel:
    vocabulary = tokenization.load_tokenizer(place.tokenizer).get_vocab_size()
    shape = recipe.target if role == "target" else recipe.draft
    model = architecture.build(shape, vocabulary, recipe.positions, _seed(recipe, role))
    return architecture.on_device(model, compute.device)


def _encoded(tokenizer: Tokenizer, documents: Path) -> tokenization.Tokens:
    encodings: Sequence[list[int]] = [
        [*tokenizer.encode(text, add_special_tokens=False).ids, tokenization.END_OF_TEXT]
        for text in corpus.texts(documents.parent, documents.name)
    ]
    return np.concatenate([np.array(ids, dtype=np.uint16) for ids in encodings])


def _seed(recipe: Recipe, purpose: str) -> int:
    """A seed of its own for each purpose, so that no two runs draw alike."""
    return recipe.seed * 2**32 + zlib.crc32(purpose.encode())

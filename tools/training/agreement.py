"""Measures a pair: validation loss, agreement, and the tokens a step could commit at best.

Agreement is what decides the speed of speculation: how often the draft, reading the target's
own text, would have picked the very token that the target picked. At a temperature both add the
same Gumbel noise, keyed by seed, position and token id, as the serving sampler does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from card.sampling import gumbel
from training.decoding import Texts
from training.errors import TrainingError
from training.progress import Show, silent
from training.ranks import Ranks, ideal_tokens_per_step
from training.tokenization import END_OF_TEXT, Tokens

BEST = (2, 4, 8)
ROWS = (4, 8, 16)


@dataclass(frozen=True)
class Agreement:
    """How well a draft foresees its target at one temperature.

    ``top_1`` is the share of tokens that are the draft's best, ``within`` the share among its
    best 2, 4, 8; ``ideal`` the mean tokens committed per target step by passes of 4, 8, 16 rows
    if the draft always had its best chain ready.
    """

    temperature: float
    tokens: int
    top_1: float
    within: dict[int, float]
    ideal: dict[int, float]


def follow(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    temperature: float,
    seed: int,
    show: Show = silent,
) -> list[Ranks]:
    """Let the target write and the draft read along.

    Returns for each prompt the draft's rank, int64 [tokens], of every token that the target
    wrote: 0 where it is the draft's own choice. A text ends after ``max_tokens`` tokens or with
    ``END_OF_TEXT``. Prompt ``i`` is sampled with seed ``seed + i``.

    Raises:
        TrainingError: the two models do not share a vocabulary.
    """
    if target.config.vocab_size != draft.config.vocab_size:
        raise TrainingError(
            f"the target's vocabulary has {target.config.vocab_size} entries, the draft's "
            f"{draft.config.vocab_size}: a pair must share one"
        )
    written, read = Texts(target, prompts, max_tokens), Texts(draft, prompts, max_tokens)
    ids = np.arange(target.config.vocab_size)
    columns: list[Tensor] = []
    finished = torch.zeros(len(prompts), dtype=torch.bool, device=target.device)
    lengths = [0] * len(prompts)
    for number in range(1, max_tokens + 1):
        noise = None
        if temperature > 0:
            noise = torch.from_numpy(
                np.stack(
                    [
                        gumbel(seed + row, np.int64(position), ids)
                        for row, position in enumerate(written.lengths.tolist())
                    ]
                )
            ).to(target.device)
        chosen = _scores(written.logits, temperature, noise).argmax(dim=-1)
        columns.append(_ranks(_scores(read.logits, temperature, noise), chosen))
        for row in torch.nonzero(~finished).flatten().tolist():
            lengths[row] = number
        finished |= chosen == END_OF_TEXT
        show(number / max_tokens, f"reading along at temperature {temperature:g}")
        if bool(finished.all()):
            break
        if number < max_tokens:
            written.append(chosen)
            read.append(chosen)
    ranks = torch.stack(columns, dim=1).cpu().numpy()
    return [row[:length] for row, length in zip(ranks, lengths, strict=True)]


def summarize(ranks: Sequence[Ranks], temperature: float) -> Agreement:
    """Figures of the texts that ``follow`` read, each text counted by its tokens."""
    every = np.concatenate(ranks)
    return Agreement(
        temperature=temperature,
        tokens=len(every),
        top_1=float((every == 0).mean()),
        within={best: float((every < best).mean()) for best in BEST},
        ideal={rows: ideal_tokens_per_step(ranks, rows) for rows in ROWS},
    )


@torch.inference_mode()
def validation_loss(
    model: nn.Module, tokens: Tokens, context: int, sequences: int, device: torch.device
) -> float:
    """Mean nats per token over ``sequences`` windows of ``context``, spread over ``tokens``.

    Raises:
        TrainingError: ``tokens`` is shorter than one window.
    """
    last = len(tokens) - context - 1
    if last < 0:
        raise TrainingError(
            f"the held-out files have {len(tokens)} tokens, at least {context + 1} are needed: "
            "gather a larger corpus"
        )
    losses = []
    for start in np.unique(np.linspace(0, last, sequences, dtype=np.int64)):
        window = np.asarray(tokens[start : start + context + 1], dtype=np.int64)
        batch = torch.from_numpy(window).to(device)[None]
        losses.append(float(next_token_loss(model, batch)))
    return float(np.mean(losses))


def next_token_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean cross-entropy in nats of every next token; ``batch`` is int64 [sequences, tokens]."""
    logits = model(input_ids=batch[:, :-1], use_cache=False).logits.float()
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def _scores(logits: Tensor, temperature: float, noise: Tensor | None) -> Tensor:
    """What the sampler takes the argmax of, float64 [texts, vocab]."""
    if noise is None:
        return logits.double()
    return F.log_softmax(logits.double() / temperature, dim=-1) + noise


def _ranks(scores: Tensor, chosen: Tensor) -> Tensor:
    """How many ids come before ``chosen`` [texts]; ties go to the lowest id."""
    own = scores.gather(1, chosen[:, None])
    lower = torch.arange(scores.shape[1], device=scores.device) < chosen[:, None]
    return ((scores > own) | ((scores == own) & lower)).sum(dim=1)

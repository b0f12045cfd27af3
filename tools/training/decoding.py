"""Decodes a batch of texts with one model, a token of each at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from training.errors import TrainingError
from training.tokenization import END_OF_TEXT


class Texts:
    """A batch of texts in a model's KV cache, and the logits of their next tokens.

    Shorter prompts are padded on the left and the padding is masked. ``logits`` is float32
    [texts, vocab]; ``lengths`` is int64 [texts], the tokens of each text so far.
    """

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], room: int) -> None:
        """Prefill ``prompts``; ``room`` is how many tokens will be appended at most.

        Raises:
            TrainingError: a prompt and ``room`` exceed the model's positions.
        """
        longest = max(map(len, prompts))
        positions = model.config.max_position_embeddings
        if longest + room > positions:
            raise TrainingError(
                f"a prompt of {longest} tokens and {room} new ones exceed the model's "
                f"{positions} positions: lower --max-tokens or shorten the prompt"
            )
        self._model = model
        self._cache = DynamicCache()
        device = model.device
        padded = [[END_OF_TEXT] * (longest - len(p)) + list(p) for p in prompts]
        self.lengths = torch.tensor([len(p) for p in prompts], device=device)
        columns = torch.arange(longest, device=device)
        self._mask = (columns >= longest - self.lengths[:, None]).long()
        self.logits = self._forward(
            torch.tensor(padded, device=device), (self._mask.cumsum(1) - 1).clamp(min=0)
        )

    def append(self, tokens: Tensor) -> None:
        """Append one token, int64 [texts], to each text."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        self.logits = self._forward(tokens[:, None], self.lengths[:, None])
        self.lengths = self.lengths + 1

    @torch.inference_mode()
    def _forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        answer = self._model(
            input_ids=tokens,
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = answer.logits[:, -1].float()
        return logits

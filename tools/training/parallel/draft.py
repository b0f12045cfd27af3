"""A draft of Hugging Face with masks: one pass over texts and the chains of masks behind them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from training.parallel.layout import Chains, positions, visible


class ParallelDraft(nn.Module):
    """A draft model, the vectors of its masks and the ids that it ranks.

    Embedding and head do not change: the draft shares them with the target, or ranks by them.

    masks   [masks, hidden] one vector a place behind the next token
    ranked  ids of the vocabulary, ascending; the head has one row each
    """

    head: Tensor
    place: Tensor

    def __init__(self, model: PreTrainedModel, masks: Tensor, ranked: npt.NDArray[np.int64]):
        super().__init__()
        self.model = model
        self.masks = nn.Parameter(masks.clone())
        for frozen in (model.get_input_embeddings(), model.get_output_embeddings()):
            for weight in frozen.parameters():
                weight.requires_grad_(False)
        size = model.config.vocab_size
        head = model.get_output_embeddings().weight.detach()
        whole = len(ranked) == size
        place = np.full(size, -100)
        place[ranked] = np.arange(len(ranked))
        self.register_buffer("head", head if whole else head[torch.from_numpy(ranked)].clone())
        self.register_buffer("place", torch.from_numpy(place))

    def hidden(self, texts: Tensor, chains: Sequence[Chains] | None = None) -> Tensor:
        """Last hidden states [windows, rows, hidden] of texts, int64 [windows, tokens], and of the
        chains of masks behind each."""
        embedded = self.model.get_input_embeddings()(texts)
        body = self.model.base_model
        if chains is None:
            of_texts: Tensor = body(inputs_embeds=embedded, use_cache=False).last_hidden_state
            return of_texts
        window = texts.shape[1]
        places = torch.from_numpy(np.stack([of.place for of in chains]) - 1)
        rows = torch.cat([embedded, self.masks[places.to(texts.device)].to(embedded)], dim=1)
        found: Tensor = body(
            inputs_embeds=rows,
            attention_mask=visible(window, chains).to(texts.device),
            position_ids=positions(window, chains).to(texts.device),
            use_cache=False,
        ).last_hidden_state
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of the ranked ids, float32 [..., ranked]."""
        return nn.functional.linear(hidden, self.head.to(hidden)).float()

    def ranks(self, tokens: Tensor) -> Tensor:
        """Places of tokens among the ranked ids; -100 (no label) for an id that is not ranked."""
        found: Tensor = self.place[tokens]
        return found

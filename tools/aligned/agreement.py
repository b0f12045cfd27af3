"""How often the draft, reading the target's own text, would choose the target's token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import DynamicCache, LlamaForCausalLM


@dataclass(frozen=True)
class Texts:
    """How much is written to measure an agreement: greedy texts behind random prompts."""

    count: int = 16
    tokens: int = 64
    prompt_tokens: int = 8

    @property
    def every(self) -> int:
        return self.count * self.tokens


@torch.inference_mode()
def measure_agreement(
    target: LlamaForCausalLM, draft_layers: int, texts: Texts, seed: int
) -> float:
    """Share of the target's greedy tokens that are the draft's first choice.

    The draft is the target's first layers, norm and head: what it would choose is read from the
    hidden states that enter layer `draft_layers`, in the target's own pass.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (texts.count, texts.prompt_tokens)
    tokens = torch.randint(target.config.vocab_size, shape, generator=generator).to(target.device)
    cache = DynamicCache(config=target.config)
    agreed = 0
    for _ in range(texts.tokens):
        output = target.model(
            input_ids=tokens, past_key_values=cache, use_cache=True, output_hidden_states=True
        )
        chosen = target.lm_head(output.last_hidden_state[:, -1]).argmax(-1)
        entering = output.hidden_states[draft_layers][:, -1]
        foreseen = target.lm_head(target.model.norm(entering)).argmax(-1)
        agreed += int((chosen == foreseen).sum())
        tokens = chosen[:, None]
    return agreed / texts.every

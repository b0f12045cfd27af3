"""What makes vLLM verify candidates: a proposer class that proposes nothing by itself.

vLLM calls the class behind each pass, without the ids of requests, and on each rank of a parallel
target. The candidates of the cache therefore reach vLLM one call later, where its scheduler takes
them by request id (`card.vllm.loop`). The scheduler hands them to all ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler


class Proposer:
    """The interface of vLLM's `custom_class` (vLLM pull request 39487)."""

    def __init__(self, config: Any) -> None:
        if current_platform.is_cpu():
            mend_rejection_sampler()

    def load_model(self, *_: Any, **__: Any) -> None: ...

    def propose(self, sampled: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        return [[] for _ in sampled]


_apply_top_k_top_p = rejection_sampler.apply_top_k_top_p


def mend_rejection_sampler() -> None:
    """Replace two functions of vLLM 0.32 that are wrong on a processor, both used only beside
    speculation.

    `expand_batch_to_tokens` returns memory that was never written, because its kernel writes into a
    copy: each row of a candidate would have any temperature, and any top-k. `apply_top_k_top_p`
    raises where no request of a pass has a candidate, because the largest k of no rows does not
    exist.
    """
    rejection_sampler.expand_batch_to_tokens = expanded
    rejection_sampler.apply_top_k_top_p = filtered


def expanded(
    of_requests: torch.Tensor,
    ends: torch.Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:
    """Values of requests [requests] for each row of their candidates, [num_tokens].

    ends  [requests] rows of the request and of those before it
    """
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    rows = of_requests.repeat_interleave(counts, output_size=num_tokens)
    return rows.masked_fill(rows == replace_from, replace_to)


def filtered(logits: torch.Tensor, k: Any, p: Any) -> torch.Tensor:
    """Logits [rows, vocabulary] with those that top-k and top-p leave out at minus infinity."""
    result: torch.Tensor = _apply_top_k_top_p(logits, k, p) if len(logits) else logits
    return result

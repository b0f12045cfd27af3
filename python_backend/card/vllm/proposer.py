"""What makes vLLM verify candidates: a proposer class that proposes nothing by itself.

vLLM calls the class behind each pass, without the ids of requests, and on each rank of a parallel
target. The candidates of the cache therefore reach vLLM one call later, where its scheduler takes
them by request id (`card.vllm.loop`). The scheduler hands them to all ranks.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.sample import rejection_sampler


class Proposer:
    """The interface of vLLM's `custom_class` (vLLM pull request 39487)."""

    def __init__(self, config: Any) -> None:
        _accept_passes_without_candidates()

    def load_model(self, *_: Any, **__: Any) -> None: ...

    def propose(self, sampled: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        return [[] for _ in sampled]


def _accept_passes_without_candidates() -> None:
    """vLLM 0.32 filters the rows of candidates also in a pass without any, and on a processor a
    request with `top_k` ends its engine there: the largest k of no rows does not exist."""
    apply = rejection_sampler.apply_top_k_top_p

    def guarded(logits: Any, k: Any, p: Any) -> Any:
        return apply(logits, k, p) if len(logits) else logits

    rejection_sampler.apply_top_k_top_p = guarded

"""The base class of drafters in its form since 1.2."""

from __future__ import annotations

from typing import Any


class Drafter:
    """Padding fails where the constructor got no lengths."""

    def __init__(
        self,
        max_draft_len: int | None = None,
        max_total_draft_tokens: int | None = None,
        max_concurrency: int | None = None,
        draft_len_schedule: dict[int, int] | None = None,
    ) -> None:
        self.max_concurrency = max_concurrency
        self._static_max_total_draft_tokens: Any = max_total_draft_tokens

    def should_use_spec_decode(
        self, requests: list[Any], max_batch_size: int, max_num_tokens: int, max_draft_len: int
    ) -> bool:
        return self.max_concurrency is None or len(requests) <= self.max_concurrency

    def pad_draft_tokens_for_cuda_graph(self, scheduled_requests: Any) -> None:
        for request in scheduled_requests.generation_requests:
            missing = self._static_max_total_draft_tokens - len(request.py_draft_tokens)
            request.py_draft_tokens.extend(0 for _ in range(missing))

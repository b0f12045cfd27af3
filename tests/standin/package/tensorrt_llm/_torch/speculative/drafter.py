"""The base class of drafters in the forms that it has had; the installed version says which."""

from __future__ import annotations

from typing import Any

from tensorrt_llm import __version__


class _Drafter11:
    """Up to 1.1: the executor pads."""

    def __init__(self, max_concurrency: int | None = None) -> None:
        self.max_concurrency = max_concurrency

    def should_use_spec_decode(
        self, requests: list[Any], max_batch_size: int, max_num_tokens: int, max_draft_len: int
    ) -> bool:
        return self.max_concurrency is None or len(requests) <= self.max_concurrency


class _Drafter120rc(_Drafter11):
    """Candidates of 1.2.0: pads to an attribute that the constructor does not set."""

    max_draft_len: int

    def pad_draft_tokens_for_cuda_graph(self, scheduled_requests: Any) -> None:
        for request in scheduled_requests.generation_requests:
            missing = self.max_draft_len - len(request.py_draft_tokens)
            request.py_draft_tokens.extend(0 for _ in range(missing))


class _Drafter12(_Drafter120rc):
    """From 1.2: all lengths in the constructor; padding fails without them."""

    def __init__(
        self,
        max_draft_len: int | None = None,
        max_total_draft_tokens: int | None = None,
        max_concurrency: int | None = None,
        draft_len_schedule: dict[int, int] | None = None,
    ) -> None:
        super().__init__(max_concurrency)
        self.max_draft_len = max_total_draft_tokens  # type: ignore[assignment]


def _form() -> type[Any]:
    if __version__.startswith("1.1"):
        return _Drafter11
    return _Drafter120rc if __version__.startswith("1.2.0rc") else _Drafter12


Drafter: Any = _form()

"""The base class of drafters in the forms that it has had; the installed version says which."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from tensorrt_llm import __version__


class _Base(ABC):
    max_concurrency: int | None

    @abstractmethod
    def prepare_draft_tokens(self, scheduled_requests: Any, resource_manager: Any = None) -> None:
        raise NotImplementedError

    def should_use_spec_decode(
        self, requests: list[Any], max_batch_size: int, max_num_tokens: int, max_draft_len: int
    ) -> bool:
        return self.max_concurrency is None or len(requests) <= self.max_concurrency


class _Drafter11(_Base):
    """Up to 1.1: the executor pads."""

    def __init__(self, max_concurrency: int | None = None) -> None:
        self.max_concurrency = max_concurrency


class _Drafter120rc(_Base):
    """Candidates of 1.2.0: pads to an attribute that the constructor does not set."""

    def __init__(self, max_concurrency: int | None = None) -> None:
        self.max_concurrency = max_concurrency

    def pad_draft_tokens_for_cuda_graph(self, scheduled_requests: Any) -> None:
        for request in scheduled_requests.generation_requests:
            missing = self.max_draft_len - len(request.py_draft_tokens)  # type: ignore[attr-defined]
            request.py_draft_tokens.extend(0 for _ in range(missing))


class _Drafter120rcTokens(_Base):
    """Later candidates of 1.2.0: one length, under another name and without a default."""

    def __init__(
        self,
        max_draft_tokens: int,
        max_concurrency: int | None = None,
        draft_len_schedule: dict[int, int] | None = None,
    ) -> None:
        self.max_concurrency = max_concurrency
        self.max_draft_tokens = max_draft_tokens
        self._static_max_draft_tokens = max_draft_tokens
        self.draft_len_schedule = draft_len_schedule

    def pad_draft_tokens_for_cuda_graph(self, scheduled_requests: Any) -> None:
        for request in scheduled_requests.generation_requests:
            missing = self._static_max_draft_tokens - len(request.py_draft_tokens)
            request.py_draft_tokens.extend(0 for _ in range(missing))


class _Drafter12(_Base):
    """1.2: all lengths in the constructor; padding fails without them."""

    def __init__(
        self,
        max_draft_len: int | None = None,
        max_total_draft_tokens: int | None = None,
        max_concurrency: int | None = None,
        draft_len_schedule: dict[int, int] | None = None,
    ) -> None:
        self.max_concurrency = max_concurrency
        self.max_draft_len = max_draft_len
        self.max_total_draft_tokens = max_total_draft_tokens
        self._static_max_total_draft_tokens = max_total_draft_tokens
        self.draft_len_schedule = draft_len_schedule

    def pad_draft_tokens_for_cuda_graph(
        self, scheduled_requests: Any, resource_manager: Any = None
    ) -> None:
        for request in scheduled_requests.generation_requests:
            static: Any = self._static_max_total_draft_tokens
            missing = static - len(request.py_draft_tokens)
            request.py_draft_tokens.extend(0 for _ in range(missing))


class _Drafter13(_Drafter12):
    """1.3: the same constructor, and a flag beside it."""

    _needs_padding_kv_extension = False


def _form() -> type[_Base]:
    if __version__.startswith("1.1"):
        return _Drafter11
    if __version__ == "1.2.0rc4":  # some candidate: which one is not known
        return _Drafter120rcTokens
    if __version__.startswith("1.2.0rc"):
        return _Drafter120rc
    return _Drafter12 if __version__.startswith("1.2") else _Drafter13


Drafter: Any = _form()

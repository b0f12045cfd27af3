"""CARD as TensorRT-LLM's user-provided drafter, which queries the cache before every target pass.

Only processes with `tensorrt_llm` import this module: the Triton process and the engine's worker,
into which the drafter is pickled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tensorrt_llm._torch.speculative.drafter import Drafter

from card.tensorrt_llm.lookup import CandidateLookup, LookupSettings

log = logging.getLogger(__name__)


class CandidateCacheDrafter(Drafter):  # type: ignore[misc]
    """Sets the candidates of every request in flight from the candidate cache.

    Its pickle holds only its settings. It attaches to the cache at its first call, in the worker.
    It writes only `py_draft_tokens`: new lists of at most `settings.candidates` ids.

    shared  query only on rank 0 and broadcast to the other tensor-parallel ranks
    """

    def __init__(self, settings: LookupSettings, shared: bool = False) -> None:
        most = settings.candidates
        super().__init__(max_draft_len=most, max_total_draft_tokens=most)
        self._settings = settings
        self._shared = shared
        self._lookup = CandidateLookup(settings)
        self._last_failure = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return CandidateCacheDrafter, (self._settings, self._shared)

    def prepare_draft_tokens(self, scheduled_requests: Any, resource_manager: Any = None) -> None:
        """The hook: in bounded time, and without ever raising, because it runs in the loop that
        decodes every request. Without an answer there are no candidates."""
        try:
            requests = list(scheduled_requests.generation_requests)
        except Exception as error:
            self._report(error)
            return

        def ask() -> list[list[int]]:
            return self._guarded(lambda: self._lookup.answer(requests), len(requests))

        answers = (
            self._guarded(lambda: shared_answer(ask), len(requests)) if self._shared else ask()
        )
        for request, candidates in zip(requests, answers, strict=True):
            request.py_draft_tokens = candidates

    def _guarded(self, ask: Callable[[], list[list[int]]], count: int) -> list[list[int]]:
        """An answer to `count` requests, or nothing for each of them."""
        try:
            answers = ask()
            if len(answers) != count:
                raise ValueError(f"{len(answers)} answers to {count} requests")
        except Exception as error:
            self._report(error)
            return [[] for _ in range(count)]
        return answers

    def _report(self, error: Exception) -> None:
        """Log an error, once for each kind of failure."""
        if (failure := repr(error)) != self._last_failure:
            log.error("no candidates: the cache cannot be asked", exc_info=error)
            self._last_failure = failure


def shared_answer(ask: Callable[[], list[list[int]]]) -> list[list[int]]:
    """The result of `ask` on rank 0, on every rank.

    Every rank has its own copy of the drafter, schedules the same batch and must verify the same
    candidates, or shapes and collectives diverge: one collective per hook call, in which every rank
    takes part. **This has not yet run on hardware.**
    """
    from tensorrt_llm._utils import mpi_broadcast, mpi_rank

    answer: list[list[int]] = mpi_broadcast(ask() if mpi_rank() == 0 else None, root=0)
    return answer

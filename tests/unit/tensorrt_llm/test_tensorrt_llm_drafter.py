"""The drafter as the loop of TensorRT-LLM calls it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorrt_double import CANDIDATES, Cache, EngineRequest, scheduled, standin

PROMPT = [5, 6, 7]


@pytest.fixture
def drafter(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with standin(tmp_path, monkeypatch):
        from card.tensorrt_llm.drafter import CandidateCacheDrafter

        yield CandidateCacheDrafter(cache.settings)


def test_requests_get_candidates_padded_alike_when_the_hook_runs(
    cache: Cache, drafter: Any
) -> None:
    """In the process that made it, and where it arrives pickled as plain settings."""
    for index, chain in enumerate(([8, 9, 10], [8, 9, 10, 11, 12, 13], [30])):
        slot = cache.open(PROMPT, index=index, client_id=2 + index)
        cache.draft(slot, len(PROMPT), chain)
    for hook in (drafter, pickle.loads(pickle.dumps(drafter))):
        requests = [EngineRequest(client_id, [*PROMPT, 8]) for client_id in (2, 3, 4, 5)]
        hook.prepare_draft_tokens(scheduled(*requests), None)
        assert [r.py_draft_tokens for r in requests] == [[9, 10], [9, 10, 11, 12], [], []]
        hook.pad_draft_tokens_for_cuda_graph(scheduled(*requests))  # as the loop does
        assert requests[0].py_draft_tokens == [9, 10, 0, 0]
        assert {len(r.py_draft_tokens) for r in requests} == {CANDIDATES}


def test_hook_never_raises_when_a_request_is_broken(
    cache: Cache, drafter: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing catches what the hook raises: the loop that decodes every request would end."""

    class Broken(EngineRequest):
        def get_tokens(self, beam: int) -> list[int]:
            raise RuntimeError("the runtime changed")

    slot = cache.open(PROMPT, client_id=2)
    cache.draft(slot, len(PROMPT), [8, 9])
    good, broken = EngineRequest(2, [*PROMPT, 8]), Broken(2, PROMPT)
    for _ in range(2):
        drafter.prepare_draft_tokens(scheduled(good, broken))
    assert [good.py_draft_tokens, broken.py_draft_tokens] == [[], []]
    assert caplog.messages == ["no candidates: the cache cannot be asked"], "once, not per pass"
    drafter.prepare_draft_tokens(object())
    drafter.prepare_draft_tokens(scheduled(good))
    assert good.py_draft_tokens == [9]


def test_ranks_follow_rank_0_when_the_target_is_tensor_parallel(
    cache: Cache, drafter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorrt_llm._utils as world

    slot = cache.open(PROMPT, client_id=2)
    cache.draft(slot, len(PROMPT), [8, 9])
    sent: list[Any] = []
    received: list[Any] = []

    def broadcast(answer: Any, root: int) -> Any:
        assert root == 0
        if world.mpi_rank() == 0:
            sent.append(answer)
        else:
            assert answer is None, "only rank 0 asks the cache"
            received.append(sent[len(received)])
        return sent[-1] if world.mpi_rank() == 0 else received[-1]

    monkeypatch.setattr(world, "mpi_broadcast", broadcast)
    requests = []
    for rank in (0, 1):
        monkeypatch.setattr(world, "mpi_rank", lambda rank=rank: rank)
        shared = type(drafter)(cache.settings, shared=True)
        assert pickle.loads(pickle.dumps(shared))._shared
        requests.append(EngineRequest(2, [*PROMPT, 8]))
        shared.prepare_draft_tokens(scheduled(requests[-1]))
        shared.prepare_draft_tokens(scheduled())
    assert sent == received == [[[9]], []]
    assert [request.py_draft_tokens for request in requests] == [[9], [9]]

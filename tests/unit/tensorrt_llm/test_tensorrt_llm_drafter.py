"""The drafter under every constructor that its base class has had."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorrt_double import CANDIDATES, Cache, EngineRequest, scheduled, standin

PROMPT = [5, 6, 7]
VERSIONS = ["1.1.0", "1.2.0rc1", "1.2.0rc4", "1.2.1", "1.3.0rc24"]


@pytest.fixture(params=VERSIONS)
def drafter(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Any]:
    with standin(tmp_path, request.param, monkeypatch):
        from card.tensorrt_llm.drafter import CandidateCacheDrafter

        yield CandidateCacheDrafter(cache.settings)


def pad(drafter: Any, batch: Any) -> None:
    """As the loop does right after the hook; up to 1.1 in its own words."""
    if hasattr(drafter, "pad_draft_tokens_for_cuda_graph"):
        drafter.pad_draft_tokens_for_cuda_graph(batch)
        return
    for request in batch.generation_requests:
        request.py_draft_tokens.extend([0] * (CANDIDATES - len(request.py_draft_tokens)))


def test_every_request_gets_its_candidates_and_is_padded_to_the_same_length(
    cache: Cache, drafter: Any
) -> None:
    for index, chain in enumerate(([8, 9, 10], [8, 9, 10, 11, 12, 13], [30])):
        slot = cache.open(PROMPT, index=index, client_id=2 + index)
        cache.draft(slot, len(PROMPT), chain)
    requests = [EngineRequest(client_id, [*PROMPT, 8]) for client_id in (2, 3, 4, 5)]
    batch = scheduled(*requests)
    drafter.prepare_draft_tokens(batch, None)
    assert [r.py_draft_tokens for r in requests] == [[9, 10], [9, 10, 11, 12], [], []]
    pad(drafter, batch)
    assert [len(r.py_draft_tokens) for r in requests] == [CANDIDATES] * 4
    assert requests[0].py_draft_tokens == [9, 10, 0, 0]


def test_what_the_executor_reads_of_a_drafter_is_there(drafter: Any) -> None:
    assert drafter.max_concurrency is None
    assert drafter.should_use_spec_decode([], 8, 1024, CANDIDATES)
    assert drafter.max_draft_len == drafter.max_total_draft_tokens == CANDIDATES


def test_it_pickles_as_plain_settings_and_attaches_in_the_worker(
    cache: Cache, drafter: Any
) -> None:
    slot = cache.open(PROMPT, client_id=2)
    cache.draft(slot, len(PROMPT), [8, 9])
    first = EngineRequest(2, [*PROMPT, 8])
    drafter.prepare_draft_tokens(scheduled(first))  # attached: maps, locks and all
    content = pickle.dumps(drafter)
    assert len(content) < 1000
    arrived = pickle.loads(content)
    second = EngineRequest(2, [*PROMPT, 8])
    arrived.prepare_draft_tokens(scheduled(second))
    assert first.py_draft_tokens == second.py_draft_tokens == [9]


def test_it_never_raises_and_then_nobody_has_candidates(
    cache: Cache, drafter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing catches what the hook raises: the loop that decodes every request would end."""

    class Broken(EngineRequest):
        def get_tokens(self, beam: int) -> list[int]:
            raise RuntimeError("the runtime changed")

    slot = cache.open(PROMPT, client_id=2)
    cache.draft(slot, len(PROMPT), [8, 9])
    good, broken = EngineRequest(2, [*PROMPT, 8]), Broken(2, PROMPT)
    drafter.prepare_draft_tokens(scheduled(good, broken))
    assert [good.py_draft_tokens, broken.py_draft_tokens] == [[], []]
    assert not cache.bindings.followed, "new sessions must be published by the Triton process"
    drafter.prepare_draft_tokens(scheduled(good))
    assert good.py_draft_tokens == [9]
    assert cache.bindings.followed


def test_a_batch_that_it_does_not_know_is_said_once(
    drafter: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        drafter.prepare_draft_tokens(object())
    (line,) = caplog.messages
    assert line == "no candidates: the cache cannot be asked"


def test_a_pool_of_other_settings_is_no_reason_to_raise(cache: Cache, drafter: Any) -> None:
    settings = replace(cache.settings, geometry=replace(cache.settings.geometry, slots=5))
    other = type(drafter)(settings)
    request = EngineRequest(2, PROMPT)
    other.prepare_draft_tokens(scheduled(request))
    assert request.py_draft_tokens == []


def test_ranks_take_part_in_one_broadcast_per_call_and_follow_rank_0(
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

"""The query before every pass of TensorRT-LLM's loop: what it answers and what it leaves."""

from __future__ import annotations

import itertools
import os
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorrt_double import BUDGET_S, CANDIDATES, END_ID, VOCABULARY, Cache, EngineRequest

from card.cache import Finish
from card.tensorrt_llm.bindings import PASSES
from card.tensorrt_llm.lookup import CandidateLookup

PROMPT = [5, 6, 7]


@pytest.fixture
def lookup(cache: Cache) -> CandidateLookup:
    return CandidateLookup(cache.settings)


@pytest.mark.parametrize(
    ("max_tokens", "chain", "answer"),
    [
        (32, [8, 9, 10], [9, 10]),
        (32, [8, 9, 10, 11, 12, 13, 14], [9, 10, 11, 12]),
        (3, [8, 9, 10, 11], [9]),
    ],
    ids=["hit", "as many as the pass has rows", "one token before the last"],
)
def test_answer_is_the_chain_behind_the_commits_when_the_cache_has_it(
    cache: Cache, lookup: CandidateLookup, max_tokens: int, chain: list[int], answer: list[int]
) -> None:
    slot = cache.open(PROMPT, client_id=2, max_tokens=max_tokens)
    cache.draft(slot, len(PROMPT), chain)
    assert lookup.answer([EngineRequest(2, [*PROMPT, 8])]) == [answer]


@pytest.mark.parametrize(
    "request_",
    [
        EngineRequest(None, [*PROMPT, 8]),
        EngineRequest(99, [*PROMPT, 8]),
        EngineRequest(2, [*PROMPT, 8], is_dummy=True),
        EngineRequest(2, [*PROMPT, 8], is_attention_dp_dummy=True),
        EngineRequest(2, [*PROMPT, 8], is_cuda_graph_dummy=True),
        EngineRequest(2, [*PROMPT, 30]),
    ],
    ids=["no id", "unknown id", "dummy", "attention dummy", "graph dummy", "another text"],
)
def test_nothing_is_answered_when_the_request_is_no_sessions(
    cache: Cache, lookup: CandidateLookup, request_: EngineRequest
) -> None:
    slot = cache.open(PROMPT, client_id=2)
    cache.pool.target_slot(0).commit([8], [False], [0.0], Finish.RUNNING)
    cache.draft(slot, len(PROMPT), [8, 9])
    assert lookup.answer([request_]) == [[]]


def test_old_request_touches_nothing_when_its_slot_has_another_session(
    cache: Cache, lookup: CandidateLookup
) -> None:
    """Its cancellation may still be on its way."""
    old = cache.open(PROMPT, client_id=2)
    lookup.answer([EngineRequest(2, [*PROMPT, 8])])
    old.close()
    assert lookup.answer([EngineRequest(2, [*PROMPT, 8, 9])]) == [[]]
    cache.pool.target_slot(0).release(old.session_id)
    assert old.reclaim()
    new = cache.open(PROMPT)  # not yet bound: the table still names the old request
    cache.draft(new, len(PROMPT), [8, 9, 10])
    for asked in (lookup, CandidateLookup(cache.settings)):
        assert asked.answer([EngineRequest(2, [*PROMPT, 8, 9])]) == [[]]
    cache.bindings.bind(0, 3, new.session_id)
    assert lookup.answer([EngineRequest(3, [*PROMPT, 8])]) == [[9, 10]]


@pytest.mark.parametrize(("end_ids", "answer"), [((END_ID, 3), [END_ID] * CANDIDATES), ((), [])])
def test_no_candidate_can_be_accepted_when_a_request_goes_without_speculation(
    cache: Cache, end_ids: tuple[int, ...], answer: list[int]
) -> None:
    """The runtime would fill up with id 0, which the target may choose; behind an end token it
    samples nothing. That holds when the time for queries is up, too."""
    slot = cache.open(PROMPT, client_id=2, decoding="autoregressive", end_ids=end_ids)
    cache.draft(slot, len(PROMPT), [8, 9, 10])
    clock = itertools.count(step=2 * BUDGET_S)
    for lookup in (
        CandidateLookup(cache.settings),
        CandidateLookup(cache.settings, lambda: next(clock)),
    ):
        assert lookup.answer([EngineRequest(2, [*PROMPT, 8])]) == [answer]
    assert slot.counters().drafted == 0


@given(
    token=st.lists(st.integers(-3, VOCABULARY + 3), max_size=12),
    parent=st.lists(st.integers(-3, 14), min_size=12, max_size=12),
    score=st.lists(st.floats(-9, 1) | st.just(float("nan")), min_size=12, max_size=12),
    root=st.integers(-5, 12),
)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_answer_is_valid_when_the_draft_wrote_garbage(
    cache: Cache, token: list[int], parent: list[int], score: list[float], root: int
) -> None:
    slot = cache.pool.card_slot(0)
    if slot.session_id == 0:
        slot = cache.open(PROMPT, client_id=2)
    count = len(token)
    cache.pool.draft_slot(0).replace(
        slot.session_id, root, np.array(token, np.int64), np.array(parent[:count], np.int64),
        np.array(score[:count]),
    )  # fmt: skip
    (answer,) = CandidateLookup(cache.settings).answer([EngineRequest(2, [*PROMPT, 8, 9])])
    assert len(answer) <= CANDIDATES
    assert all(type(one) is int and 0 <= one < VOCABULARY for one in answer)


def test_table_holds_the_candidates_of_the_last_passes_when_results_come_late(
    cache: Cache, lookup: CandidateLookup
) -> None:
    slot = cache.open(PROMPT, client_id=2)
    chain = list(range(8, 16))
    cache.draft(slot, len(PROMPT), chain)
    for accepted in range(1, PASSES + 2):
        lookup.answer([EngineRequest(2, [*PROMPT, *chain[:accepted]])])
    offered = [
        cache.bindings.offered(0, slot.session_id, len(PROMPT) + accepted)
        for accepted in range(1, PASSES + 2)
    ]
    behind = [chain[accepted:][:CANDIDATES] for accepted in range(1, PASSES + 2)]
    assert offered == [[], *behind[1:]], "the oldest pass is overwritten"
    assert cache.bindings.offered(0, slot.session_id + 1, len(PROMPT) + 2) == []
    assert cache.output(slot) == [], "the Triton process commits"
    assert (slot.counters().queries, slot.counters().hits) == (PASSES + 1, PASSES + 1)


def test_request_is_first_in_the_next_pass_when_the_budget_did_not_reach_it(cache: Cache) -> None:
    requests = []
    for index in range(3):
        slot = cache.open(PROMPT, index=index, client_id=2 + index)
        cache.draft(slot, len(PROMPT), [8, 9])
        requests.append(EngineRequest(2 + index, [*PROMPT, 8]))
    clock = itertools.count(step=0.6 * BUDGET_S)
    lookup = CandidateLookup(cache.settings, lambda: next(clock))
    answers = [lookup.answer(requests) for _ in range(3)]
    assert answers == [[[9], [], []], [[], [9], []], [[], [], [9]]]


def test_worker_touches_nothing_when_its_triton_process_has_ended(cache: Cache) -> None:
    """Its sessions are another process's now, and its client ids begin anew there."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    slot = cache.open(PROMPT, client_id=2)
    cache.draft(slot, len(PROMPT), [8, 9])
    for owner in (ended.pid, os.getppid()):
        orphan = CandidateLookup(replace(cache.settings, owner_pid=owner))
        assert orphan.answer([EngineRequest(2, [*PROMPT, 8])]) == [[]]

"""The query before every pass of TensorRT-LLM's loop: what it publishes and what it answers."""

from __future__ import annotations

import itertools
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorrt_double import BUDGET_S, CANDIDATES, END_ID, VOCABULARY, Cache, EngineRequest

from card.cache import Finish, Pool
from card.cache.home import sweep_pools
from card.tensorrt_llm.bindings import Bindings
from card.tensorrt_llm.lookup import CandidateLookup

PROMPT = [5, 6, 7]


@pytest.fixture
def lookup(cache: Cache) -> CandidateLookup:
    return CandidateLookup(cache.settings)


# --- what it answers ------------------------------------------------------------------------------


def test_a_hit_gives_the_chain_behind_what_is_committed(
    cache: Cache, lookup: CandidateLookup
) -> None:
    slot = cache.open(PROMPT, client_id=2)
    cache.draft(slot, len(PROMPT), [8, 9, 10])
    assert lookup.answer([EngineRequest(2, [*PROMPT, 8])]) == [[9, 10]]


def test_no_more_candidates_than_the_pass_has_rows(cache: Cache, lookup: CandidateLookup) -> None:
    slot = cache.open(PROMPT, client_id=2)
    cache.draft(slot, len(PROMPT), [8, 9, 10, 11, 12, 13, 14])
    assert lookup.answer([EngineRequest(2, [*PROMPT, 8])]) == [[9, 10, 11, 12]]


def test_candidates_end_one_token_before_the_last(cache: Cache, lookup: CandidateLookup) -> None:
    """The last token is the target's own: nothing could be verified behind it."""
    slot = cache.open(PROMPT, client_id=2, max_tokens=3)
    cache.draft(slot, len(PROMPT), [8, 9, 10, 11])
    assert lookup.answer([EngineRequest(2, [*PROMPT, 8])]) == [[9]]
    assert lookup.answer([EngineRequest(2, [*PROMPT, 8, 9])]) == [[]]


def test_answers_are_lists_of_their_own(cache: Cache, lookup: CandidateLookup) -> None:
    """The loop extends them in place."""
    for index, client_id in enumerate((2, 3)):
        slot = cache.open(PROMPT, index=index, client_id=client_id)
        cache.draft(slot, len(PROMPT), [8, 9])
    requests = [EngineRequest(2, [*PROMPT, 8]), EngineRequest(3, [*PROMPT, 8])]
    first = lookup.answer(requests)
    assert first == [[9], [9]]
    for answer in first:
        answer.extend([0, 0])
    assert lookup.answer(requests[1:]) == [[9]]
    lookup.answer([EngineRequest(2, [*PROMPT, 8, 9, 0, 20])])
    counters = cache.pool.card_slot(0).counters()
    assert (counters.drafted, counters.accepted) == (1, 1), "padding is no candidate of ours"


@pytest.mark.parametrize(
    "request_",
    [
        EngineRequest(None, [*PROMPT, 8]),
        EngineRequest(99, [*PROMPT, 8]),
        EngineRequest(2, [*PROMPT, 8], is_dummy=True),
        EngineRequest(2, [*PROMPT, 8], is_attention_dp_dummy=True),
        EngineRequest(2, [*PROMPT, 8], is_cuda_graph_dummy=True),
    ],
    ids=["no id", "unknown id", "dummy", "attention dummy", "graph dummy"],
)
def test_unknown_and_dummy_requests_get_nothing(
    cache: Cache, lookup: CandidateLookup, request_: EngineRequest
) -> None:
    slot = cache.open(PROMPT, client_id=2)
    cache.draft(slot, len(PROMPT), [8, 9])
    assert lookup.answer([request_]) == [[]]
    assert cache.output(slot) == []


def test_a_closed_session_gets_nothing(cache: Cache, lookup: CandidateLookup) -> None:
    slot = cache.open(PROMPT, client_id=2)
    cache.draft(slot, len(PROMPT), [8, 9])
    assert lookup.answer([EngineRequest(2, [*PROMPT, 8])]) == [[9]]
    slot.close()
    assert lookup.answer([EngineRequest(2, [*PROMPT, 8, 9])]) == [[]]
    assert cache.output(slot) == [8]


def test_a_request_of_an_earlier_session_never_touches_the_slots_next_one(
    cache: Cache, lookup: CandidateLookup
) -> None:
    """Its cancellation may still be on its way while another session has the slot."""
    old = cache.open(PROMPT, client_id=2)
    lookup.answer([EngineRequest(2, [*PROMPT, 8])])
    old.close()
    cache.pool.target_slot(0).release(old.session_id)
    assert old.reclaim()
    new = cache.open(PROMPT)  # not yet bound: the table still names the old request
    cache.draft(new, len(PROMPT), [8, 9, 10])
    for asked in (lookup, CandidateLookup(cache.settings)):
        assert asked.answer([EngineRequest(2, [*PROMPT, 8, 9])]) == [[]]
        assert cache.output(new) == []
    cache.bindings.bind(0, 3, new.session_id)
    assert lookup.answer([EngineRequest(2, [*PROMPT, 8, 9])]) == [[]]
    assert lookup.answer([EngineRequest(3, [*PROMPT, 8])]) == [[9, 10]]


@pytest.mark.parametrize(("end_ids", "answer"), [((END_ID, 3), [END_ID] * CANDIDATES), ((), [])])
def test_without_speculation_nothing_can_be_accepted(
    cache: Cache, lookup: CandidateLookup, end_ids: tuple[int, ...], answer: list[int]
) -> None:
    """The runtime would fill up with id 0, which the target may choose; behind an end token
    nothing is sampled."""
    slot = cache.open(PROMPT, client_id=2, decoding="autoregressive", end_ids=end_ids)
    cache.draft(slot, len(PROMPT), [8, 9, 10])
    assert lookup.answer([EngineRequest(2, [*PROMPT, 8])]) == [answer]
    counters = slot.counters()
    assert (counters.queries, counters.drafted) == (0, 0)


@given(
    token=st.lists(st.integers(-3, VOCABULARY + 3), max_size=12),
    parent=st.lists(st.integers(-3, 14), min_size=12, max_size=12),
    score=st.lists(st.floats(-9, 1) | st.just(float("nan")), min_size=12, max_size=12),
    root=st.integers(-5, 12),
)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_draft_wrote_the_answer_is_safe(
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


# --- what it publishes ----------------------------------------------------------------------------


def test_accepted_tokens_are_published_with_what_came_from_the_cache(
    cache: Cache, lookup: CandidateLookup
) -> None:
    slot = cache.open(PROMPT, client_id=2)
    cache.draft(slot, len(PROMPT), [8, 9, 10, 11])
    for _ in range(2):  # nothing is published twice
        lookup.answer([EngineRequest(2, [*PROMPT, 8])])
    lookup.answer([EngineRequest(2, [*PROMPT, 8, 9, 10, 20])])
    assert cache.output(slot) == [8, 9, 10, 20]
    assert slot.is_accepted(0, 4).tolist() == [False, True, True, False]
    assert slot.finish(slot.session_id) is Finish.RUNNING
    counters = slot.counters()
    assert (counters.steps, counters.accepted, counters.drafted) == (2, 2, 3)
    assert (counters.queries, counters.hits) == (3, 2)


def test_passes_before_the_request_was_known_count_one_each(
    cache: Cache, lookup: CandidateLookup
) -> None:
    slot = cache.open(PROMPT, client_id=2, decoding="autoregressive")
    lookup.answer([EngineRequest(2, [*PROMPT, 8, 9, 10])])
    assert cache.output(slot) == [8, 9, 10]
    counters = slot.counters()
    assert (counters.steps, counters.corrections) == (3, 0)
    assert counters.tokens_per_step[1] == 3


def test_a_pass_that_the_budget_did_not_reach_counts_behind_the_one_with_candidates(
    cache: Cache, lookup: CandidateLookup
) -> None:
    slot = cache.open(PROMPT, client_id=2)
    cache.draft(slot, len(PROMPT), [8, 9, 10, 11])
    lookup.answer([EngineRequest(2, [*PROMPT, 8])])
    lookup.answer([EngineRequest(2, [*PROMPT, 8, 9, 20, 21])])
    assert slot.is_accepted(0, 4).tolist() == [False, True, False, False]
    counters = slot.counters()
    assert (counters.steps, counters.accepted, counters.corrections) == (3, 1, 1)


def test_a_resumed_session_goes_on_behind_its_commits(
    cache: Cache, lookup: CandidateLookup
) -> None:
    slot = cache.open(PROMPT, client_id=2)
    cache.pool.target_slot(0).commit([8, 9], [False, False], [0.0, 0.0], Finish.RUNNING)
    cache.draft(slot, len(PROMPT) + 2, [10, 11])
    assert lookup.answer([EngineRequest(2, [*PROMPT, 8, 9, 10])]) == [[11]]
    assert cache.output(slot) == [8, 9, 10]


@pytest.mark.parametrize(
    "tokens",
    [PROMPT, [*PROMPT, 8], [*PROMPT, 8, 30], [*PROMPT, *range(10, 43)]],
    ids=["behind", "one short", "another text", "too many"],
)
def test_a_text_that_does_not_fit_the_commits_is_not_the_sessions(
    cache: Cache, lookup: CandidateLookup, tokens: list[int]
) -> None:
    slot = cache.open(PROMPT, client_id=2)
    cache.pool.target_slot(0).commit([8, 9], [False, False], [0.0, 0.0], Finish.RUNNING)
    cache.draft(slot, len(PROMPT) + 2, [10, 11])
    assert lookup.answer([EngineRequest(2, tokens)]) == [[]]
    assert cache.output(slot) == [8, 9]


def test_where_log_probabilities_are_wanted_the_hook_publishes_nothing(
    cache: Cache, lookup: CandidateLookup
) -> None:
    slot = cache.open(PROMPT, client_id=2, decoding="autoregressive", log_probabilities=True)
    assert lookup.answer([EngineRequest(2, [*PROMPT, 8])]) == [[END_ID] * CANDIDATES]
    assert cache.output(slot) == []


def test_what_was_offered_last_is_left_for_the_triton_process(
    cache: Cache, lookup: CandidateLookup
) -> None:
    slot = cache.open(PROMPT, client_id=2)
    cache.draft(slot, len(PROMPT), [8, 9, 10])
    lookup.answer([EngineRequest(2, [*PROMPT, 8])])
    offered = cache.bindings.offered(0, slot.session_id, len(PROMPT) + 1)
    assert offered == [9, 10]
    assert cache.bindings.offered(0, slot.session_id, len(PROMPT)) == []
    assert cache.bindings.offered(0, slot.session_id + 1, len(PROMPT) + 1) == []


# --- bounded time ---------------------------------------------------------------------------------


def test_what_takes_too_long_waits_for_the_next_pass_and_is_first_then(
    cache: Cache,
) -> None:
    requests = []
    for index in range(3):
        slot = cache.open(PROMPT, index=index, client_id=2 + index)
        cache.draft(slot, len(PROMPT), [8, 9])
        requests.append(EngineRequest(2 + index, [*PROMPT, 8]))
    clock = itertools.count(step=0.6 * BUDGET_S)
    lookup = CandidateLookup(cache.settings, lambda: next(clock))
    answers = [lookup.answer(requests) for _ in range(3)]
    assert answers == [[[9], [], []], [[], [9], []], [[], [], [9]]]


def test_a_request_without_speculation_keeps_its_end_tokens_when_time_is_up(
    cache: Cache,
) -> None:
    """The runtime would fill up with id 0, which could be accepted."""
    for index, decoding in enumerate(("card", "autoregressive")):
        cache.open(PROMPT, index=index, client_id=2 + index, decoding=decoding)
    clock = itertools.count(step=2 * BUDGET_S)
    lookup = CandidateLookup(cache.settings, lambda: next(clock))
    requests = [EngineRequest(2, [*PROMPT, 8]), EngineRequest(3, [*PROMPT, 8])]
    assert lookup.answer(requests) == [[], [END_ID] * CANDIDATES]


# --- attaching ------------------------------------------------------------------------------------


def test_without_a_pool_or_a_table_there_are_no_candidates(cache: Cache, tmp_path: Path) -> None:
    nowhere = CandidateLookup(replace(cache.settings, server_pid=1))
    assert nowhere.answer([EngineRequest(2, PROMPT)]) == [[]]
    next(cache.pool.path.parent.glob("requests-*")).unlink()
    assert CandidateLookup(cache.settings).answer([EngineRequest(2, PROMPT)]) == [[]]


def test_it_follows_to_the_table_that_replaced_its_own(
    cache: Cache, lookup: CandidateLookup
) -> None:
    slot = cache.open(PROMPT, client_id=2)
    cache.draft(slot, len(PROMPT), [8, 9])
    lookup.answer([EngineRequest(2, [*PROMPT, 8])])
    cache.bindings = Bindings.create(cache.pool)
    assert lookup.answer([EngineRequest(2, [*PROMPT, 8])]) == [[]]
    cache.bindings.bind(0, 7, slot.session_id)
    assert lookup.answer([EngineRequest(7, [*PROMPT, 8])]) == [[9]]


def test_it_follows_to_another_pool(cache: Cache, lookup: CandidateLookup) -> None:
    lookup.answer([])
    cache.pool.unlink()
    assert lookup.answer([EngineRequest(2, PROMPT)]) == [[]]
    cache.pool = Pool.create(cache.directory, os.getpid(), cache.pool.geometry)
    cache.bindings = Bindings.create(cache.pool)
    slot = cache.open(PROMPT, client_id=2)
    cache.draft(slot, len(PROMPT), [8, 9])
    assert lookup.answer([EngineRequest(2, [*PROMPT, 8])]) == [[9]]


def test_a_worker_that_outlives_its_triton_process_touches_nothing(cache: Cache) -> None:
    """Its sessions are another process's now, and its client ids begin anew there."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    slot = cache.open(PROMPT, client_id=2)
    cache.draft(slot, len(PROMPT), [8, 9])
    for owner in (ended.pid, os.getppid()):
        orphan = CandidateLookup(replace(cache.settings, owner_pid=owner))
        assert orphan.answer([EngineRequest(2, [*PROMPT, 8])]) == [[]]
    assert cache.output(slot) == []


def test_and_stops_in_the_midst_of_a_request(cache: Cache) -> None:
    slot = cache.open(PROMPT, client_id=2)
    lives = iter([True, False])
    lookup = CandidateLookup(cache.settings, runs=lambda _: next(lives))
    lookup.answer([EngineRequest(2, [*PROMPT, 8])])
    assert lookup.answer([EngineRequest(2, [*PROMPT, 8, 9])]) == [[]]
    assert cache.output(slot) == [8]


def test_the_table_is_swept_with_its_pool(cache: Cache) -> None:
    cache.bindings.close()
    cache.pool.close()
    sweep_pools(cache.directory)
    assert list(cache.directory.iterdir()) == []

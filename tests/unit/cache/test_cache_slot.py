"""A slot's life: opened by `card`, decoded by the target, read by `card`, free again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_process import request_of

from card.cache import CardSlot, Finish, Geometry, Pool, SlotRequest, SlotState, TargetSlot
from card.sampling import SamplingParameters
from card.speculation.pacing import PACINGS

GEOMETRY = Geometry(
    slots=2, nodes=64, prompt=32, output=32, bad_words=4, bad_word_tokens=16, logit_bias=3,
    likeliest=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def shared_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    pool = Pool.create(tmp_path_factory.mktemp("pool"), 1, GEOMETRY)
    yield pool
    pool.unlink()


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Pool.create(tmp_path, 1, GEOMETRY)


def commit(
    pool: Pool, tokens: list[int], finish: Finish = Finish.RUNNING, cached: bool = False
) -> None:
    pool.target_slot(0).commit(tokens, [cached] * len(tokens), [-0.5] * len(tokens), finish)


def opened(pool: Pool, max_tokens: int = 8) -> tuple[CardSlot, TargetSlot, int]:
    """A session in slot 0 that the target has adopted."""
    card, target, session_id = pool.card_slot(0), pool.target_slot(0), pool.new_session_id()
    card.open(request_of([1], max_tokens), session_id)
    assert target.adopt(session_id) == 0
    return card, target, session_id


def test_a_finish_counts_only_together_with_its_last_token(pool: Pool) -> None:
    """A target killed just before it raised the count has finished nothing."""
    card, _, session_id = opened(pool, 3)
    commit(pool, [4, 5])
    commit(pool, [6], Finish.LENGTH)
    assert card.finish(session_id) is Finish.LENGTH
    pool.slots["committed"][0] -= 1
    assert card.finish(session_id) is Finish.RUNNING
    assert pool.target_slot(0).adopt(session_id) == 2
    commit(pool, [6], Finish.LENGTH)
    assert card.finish(session_id) is Finish.LENGTH


def test_a_slot_is_free_only_after_the_target_let_go(pool: Pool) -> None:
    card, target = pool.card_slot(0), pool.target_slot(0)
    first, second = pool.new_session_id(), pool.new_session_id()
    request = request_of([1], 2)
    card.open(request, first)
    assert not card.reclaim(), "an open slot is not free"
    with pytest.raises(RuntimeError, match="slot 0 is not free"):
        card.open(request, second)
    card.close()
    assert not card.reclaim()
    with pytest.raises(RuntimeError, match="slot 0 is not free"):
        card.open(request, second)
    target.release(first)
    assert card.reclaim()
    assert card.state is SlotState.FREE
    card.open(request, second)
    card.close()
    assert not card.reclaim(), "what was released is the session before"
    assert card.reclaim(target_is_dead=True)


def test_a_slot_that_is_opened_anew_while_it_is_read_has_no_request_yet(pool: Pool) -> None:
    card, target = pool.card_slot(0), pool.target_slot(0)

    class Reader(TargetSlot):
        def request(self) -> SlotRequest:
            card.close()
            assert card.reclaim(target_is_dead=True)
            card.open(request_of([2], 2), pool.new_session_id())
            return super().request()

    card.open(request_of([1], 2), pool.new_session_id())
    assert Reader(target._record, 0, pool.commit_bell).opened() is None
    assert target.opened() is not None
    pool.slots["min_tokens"] = -1  # half of another one's numbers
    assert target.opened() is None


tokens = st.integers(0, 200_000)
numbers = st.floats(-1e9, 1e9)
parameters = st.builds(
    SamplingParameters,
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 1 << 31),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    logit_bias=st.lists(st.tuples(tokens, numbers), max_size=3).map(tuple),
    repetition_penalty=st.floats(1e-6, 1e6),
    presence_penalty=numbers,
    frequency_penalty=numbers,
    min_tokens=st.integers(0, 1 << 31),
    bad_words=st.lists(st.lists(tokens, min_size=1, max_size=4).map(tuple), max_size=4).map(tuple),
    seed=st.integers(0, (1 << 64) - 1),
    end_ids=st.lists(tokens, max_size=16).map(tuple),
)
requests = st.builds(
    SlotRequest,
    prompt=st.lists(tokens, min_size=1, max_size=32).map(lambda ids: np.array(ids, np.int64)),
    max_tokens=st.integers(1, 32),
    pacing=st.sampled_from(list(PACINGS)),
    parameters=parameters,
    num_draft_tokens=st.integers(1, 32),
    log_probabilities=st.booleans(),
    likeliest=st.integers(0, 2),
    prompt_log_probabilities=st.booleans(),
    trace=st.booleans(),
)


@given(st.lists(requests, min_size=1, max_size=3))
def test_a_request_arrives_as_it_was_sent(shared_pool: Pool, sent: list[SlotRequest]) -> None:
    card = shared_pool.card_slot(0)
    for request in sent:  # one after the other: nothing of an earlier one may shine through
        card.open(request, shared_pool.new_session_id())
        found = shared_pool.target_slot(0).request()
        card.close()
        assert card.reclaim(target_is_dead=True)
        assert found.prompt.tolist() == request.prompt.tolist()
        assert found.parameters == request.parameters
        for name in (
            "max_tokens",
            "pacing",
            "num_draft_tokens",
            "drafter",
            "log_probabilities",
            "likeliest",
            "prompt_log_probabilities",
            "trace",
        ):
            assert getattr(found, name) == getattr(request, name), name

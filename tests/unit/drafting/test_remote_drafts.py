"""A device writes candidates for its own session, within bounds, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from serving_double import HandPlayedTarget, slot_request
from watched_record import WatchedRecord

from card.cache import LONGEST_CHAIN, CardSlot, Pool, RemoteSlot, SlotRequest, digest_of
from card.cache.header import Record
from card.serving.requests.refusal import Refusal
from card.serving.requests.remote import RemoteDrafts, check_sizes
from card.speculation.drafters.remote import REMOTE, DeviceDraft

KEY, OTHER = digest_of("a" * 32), digest_of("b" * 32)
VOCABULARY = 64
PROMPT = 3
"""Tokens of the prompts of `slot_request`."""


def keyed(request: SlotRequest, digest: bytes = KEY) -> SlotRequest:
    fields = {name: getattr(request, name) for name in SlotRequest.__slots__}
    return SlotRequest(**fields | {"drafter": REMOTE, "draft_key_digest": digest})


@pytest.fixture
def drafts(pool: Pool) -> RemoteDrafts:
    return RemoteDrafts(pool, VOCABULARY)


def opened(pool: Pool, digest: bytes | None, index: int = 0) -> CardSlot:
    """A session with `digest` that waits for its first token; None: one of the draft's process."""
    request = slot_request(128) if digest is None else keyed(slot_request(128), digest)
    slot = pool.card_slot(index)
    slot.open(request, pool.new_session_id())
    pool.target_slot(index).adopt(slot.session_id)
    return slot


def chain(pool: Pool, index: int = 0) -> tuple[int, list[int]] | None:
    """Where the chain of a slot's session begins, and its tokens."""
    slot = pool.target_slot(index)
    tree = slot.tree(slot.session_id, VOCABULARY, remote=True)
    return None if tree is None else (tree.root_length, tree.token)


# --- what is published ---------------------------------------------------------------------------


def test_what_is_left_of_a_draft_stands_behind_what_is_committed(
    pool: Pool, drafts: RemoteDrafts
) -> None:
    opened(pool, KEY)
    assert drafts.take(KEY, DeviceDraft(0, [5, 6, 7, 8]))
    assert chain(pool) == (PROMPT, [5, 6, 7, 8])
    HandPlayedTarget(pool).commit(0, [5, 6])
    assert drafts.take(KEY, DeviceDraft(0, [5, 6, 7, 8, 9]))
    assert drafts.take(KEY, DeviceDraft(2, [7, 8, 9, 1]))
    assert chain(pool) == (PROMPT + 2, [7, 8, 9, 1])


# --- who may write, and how much -----------------------------------------------------------------


def test_a_key_opens_its_own_session_alone(pool: Pool, drafts: RemoteDrafts) -> None:
    opened(pool, KEY, 0)
    opened(pool, OTHER, 1)
    drafts.take(OTHER, DeviceDraft(0, [1]))
    assert (chain(pool, 0), chain(pool, 1)) == (None, (PROMPT, [1]))
    with pytest.raises(Refusal, match="names no session"):
        drafts.take(digest_of("c" * 32), DeviceDraft(0, [1]))


@pytest.mark.parametrize("next_digest", [None, OTHER], ids=["the draft's", "another device's"])
def test_the_key_of_a_session_that_ended_opens_nothing(
    pool: Pool, drafts: RemoteDrafts, next_digest: bytes | None
) -> None:
    slot = opened(pool, KEY)
    slot.close()
    with pytest.raises(Refusal, match="names no session"):
        drafts.take(KEY, DeviceDraft(0, [1]))
    assert slot.reclaim(target_is_dead=True)
    opened(pool, next_digest)
    with pytest.raises(Refusal, match="names no session"):
        drafts.take(KEY, DeviceDraft(0, [1]))
    assert chain(pool) is None


@pytest.mark.parametrize(
    ("draft", "why"),
    [
        (DeviceDraft(0, [1, -1]), "token ids, each 0 to 63"),
        (DeviceDraft(0, [VOCABULARY]), "token ids, each 0 to 63"),
        (DeviceDraft(-1, [1]), "position is -1; it must be 0 or more"),
        (DeviceDraft(3, [1]), "position is 3; it must be at most 2"),
    ],
)
def test_what_no_honest_device_sends_is_refused_and_changes_nothing(
    pool: Pool, drafts: RemoteDrafts, draft: DeviceDraft, why: str
) -> None:
    opened(pool, KEY)
    HandPlayedTarget(pool).commit(0, [5, 6])
    with pytest.raises(Refusal, match=why):
        drafts.take(KEY, draft)
    assert chain(pool) is None


def test_a_device_that_floods_is_heard_again_with_the_next_commit(
    pool: Pool, drafts: RemoteDrafts
) -> None:
    opened(pool, KEY, 0)
    opened(pool, OTHER, 1)
    for _ in range(LONGEST_CHAIN):
        drafts.take(KEY, DeviceDraft(0, [1]))
    with pytest.raises(Refusal, match="wait for tokens"):
        drafts.take(KEY, DeviceDraft(0, [2]))
    assert chain(pool, 0) == (PROMPT, [1])
    assert drafts.take(OTHER, DeviceDraft(0, [3])), "no other device is held up"
    HandPlayedTarget(pool).commit(0, [9])
    assert drafts.take(KEY, DeviceDraft(1, [2]))


SIZES: dict[str, list[int]] = {"draft_key": [1], "position": [1], "candidates": [64]}


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ({"draft_key": [1], "candidates": [1]}, "position is missing"),
        (SIZES | {"candidates": [65]}, "candidates has 65 elements; it must have 1 to 64"),
        (SIZES | {"candidates": [0]}, "candidates has 0 elements"),
        (SIZES | {"position": [2]}, "position has 2 elements; it must have 1"),
        (SIZES | {"prompt": [1]}, "input is 'prompt'; it must be one of draft_key"),
    ],
)
def test_a_message_of_another_shape_is_refused_by_name(
    sizes: dict[str, list[int]], why: str
) -> None:
    with pytest.raises(Refusal, match=why):
        check_sizes(sizes)


# --- one writer, and a reader that believes nothing ----------------------------------------------


def test_a_chain_is_seen_as_it_was_or_as_it_is(pool: Pool) -> None:
    session_id = opened(pool, KEY).session_id
    seen: list[object] = []
    record: Any = WatchedRecord(Record(pool.slots, 0), lambda: seen.append(chain(pool)))
    slot = RemoteSlot(record, 0)
    before = None
    for length, tokens in ((3, [1, 2, 3]), (4, [9]), (9, list(range(64))), (10, [])):
        seen.clear()
        slot.publish(session_id, length, tokens)
        after = (length, tokens)
        assert all(found in (before, after) for found in seen)
        assert len(seen) >= 4
        assert chain(pool) == after
        before = after

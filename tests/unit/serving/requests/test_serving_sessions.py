"""Slots and their queue: bounded, in order, nothing lost, no waiting request woken without need."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from follower_double import Client
from serving_double import HandPlayedTarget, slot_request

from card.cache import Pool, SlotState
from card.serving.requests.delta import SIGN_NS, Delta, Numbers
from card.serving.requests.refusal import Refusal
from card.serving.requests.sessions import Session, Sessions, WaitingClient


def sessions_of(pool: Pool, timeout_s: float = 30.0) -> Sessions:
    return Sessions(pool, timeout_s)


async def admit(sessions: Sessions, deadline_ns: int | None = None) -> Session:
    return await sessions.admit(slot_request(), deadline_ns, lambda _: False)


def give_back(sessions: Sessions, pool: Pool, session: Session) -> None:
    sessions.close(session)
    HandPlayedTarget(pool).release(session.slot.index)
    sessions.reclaim(target_is_dead=False)


async def test_a_closed_slot_is_used_again_only_when_the_target_let_go_of_it(pool: Pool) -> None:
    sessions = sessions_of(pool)
    first, _ = await admit(sessions), await admit(sessions)
    sessions.close(first)
    assert sessions.reclaim(target_is_dead=False) == []
    waiting = asyncio.ensure_future(admit(sessions))
    await asyncio.sleep(0)
    assert not waiting.done()
    HandPlayedTarget(pool).release(first.slot.index)
    assert sessions.reclaim(target_is_dead=False) == [first]
    assert (await waiting).slot.index == first.slot.index


async def test_slots_that_an_earlier_card_closed_are_reclaimed_too(
    pool: Pool, tmp_path: Path
) -> None:
    await admit(sessions_of(pool))
    pool.slots["state"][0] = SlotState.CLOSED
    successor = sessions_of(pool)
    assert successor.in_use == 1
    HandPlayedTarget(pool).release(0)
    successor.reclaim(target_is_dead=False)
    assert successor.in_use == 0
    assert {(await admit(successor)).slot.index for _ in range(2)} == {0, 1}


async def test_who_waits_is_served_in_order(pool: Pool) -> None:
    sessions = sessions_of(pool)
    held = [await admit(sessions) for _ in range(2)]
    order: list[int] = []

    async def wait(name: int) -> None:
        await admit(sessions)
        order.append(name)

    tasks = [asyncio.ensure_future(wait(name)) for name in range(2)]
    await asyncio.sleep(0)
    assert sessions.waiting == 2
    for session in held:
        give_back(sessions, pool, session)
    await asyncio.gather(*tasks)
    assert order == [0, 1]


async def test_slot_when_it_is_promised_goes_to_no_other_request(pool: Pool) -> None:
    sessions = sessions_of(pool)
    held = [await admit(sessions) for _ in range(2)]
    waiting = asyncio.ensure_future(admit(sessions))
    await asyncio.sleep(0)
    give_back(sessions, pool, held[0])
    late = admit(sessions)
    late.send(None)  # runs before the waiting one wakes up, and finds no slot
    assert sessions.waiting == 1
    assert (await waiting).slot.index == held[0].slot.index
    late.close()


@pytest.mark.parametrize(
    ("timeout_s", "deadline_in_ns", "code"),
    [(0.01, None, "UNAVAILABLE"), (30.0, 1_000_000, "DEADLINE_EXCEEDED")],
)
async def test_waiting_ends_at_the_queues_limit_or_the_requests_deadline(
    pool: Pool, timeout_s: float, deadline_in_ns: int | None, code: str
) -> None:
    sessions = sessions_of(pool, timeout_s)
    for _ in range(2):
        await admit(sessions)
    deadline_ns = None if deadline_in_ns is None else time.monotonic_ns() + deadline_in_ns
    with pytest.raises(Refusal, match=code):
        await admit(sessions, deadline_ns)
    assert sessions.waiting == 0


async def test_news_are_commits_of_the_session_itself_alone(pool: Pool) -> None:
    sessions, target = sessions_of(pool), HandPlayedTarget(pool)
    first = await admit(sessions)
    target.commit(first.slot.index, [5])
    assert sessions.with_news() == [first]
    assert sessions.take(first)[0] == [5]
    assert sessions.with_news() == []
    give_back(sessions, pool, first)
    others = [await admit(sessions) for _ in range(2)]
    assert first.slot.index in {other.slot.index for other in others}
    assert sessions.with_news() == []  # the slot still holds the old session's commits


async def test_what_postprocessing_abandoned_is_found(pool: Pool) -> None:
    sessions = sessions_of(pool)
    first, second = await admit(sessions), await admit(sessions)
    pool.abandoned[second.slot.index] = second.session_id
    pool.abandoned[first.slot.index] = first.session_id - 1
    assert sessions.abandoned() == [second]


async def test_queue_when_requests_wait_gives_each_its_own_place(pool: Pool) -> None:
    """A request that leaves is known by its place; those behind it move up."""
    sessions, queue = sessions_of(pool), pool.geometry.queue
    seen: dict[int, list[int]] = {number: [] for number in range(3 * queue)}

    def watched(number: int) -> Callable[[int], bool]:
        def is_gone(place: int) -> bool:
            seen[number].append(place)
            return False

        return is_gone

    held = deque([await admit(sessions) for _ in range(2)])
    waiting: deque[asyncio.Future[Session]] = deque()
    for number in seen:
        if len(waiting) == queue:
            give_back(sessions, pool, held.popleft())
            held.append(await waiting.popleft())
        entry = sessions.admit(slot_request(), None, watched(number))
        waiting.append(asyncio.ensure_future(entry))
        await asyncio.sleep(0)
        assert sessions.waiting == len(waiting)
    for _ in range(queue):
        give_back(sessions, pool, held.popleft())
        held.append(await waiting.popleft())
    places = [place for (place,) in seen.values()]
    assert set(places) == set(range(pool.geometry.slots, pool.geometry.places))
    assert all(len({*places[at : at + queue]}) == queue for at in range(0, len(places), queue))


class Scene:
    """A client that waits at its place, on a clock of its own."""

    def __init__(self, pool: Pool, *, streams: bool, place: int = 0) -> None:
        self.pool = pool
        self.place = pool.geometry.slots + place
        self.now_ns = 10**9
        self.client = Client()
        sign = (lambda *at: Delta("", Numbers(*at))) if streams else None
        self.waiting = WaitingClient(self.client, pool, sign, clock_ns=lambda: self.now_ns)

    def wait(self, signs: float) -> bool:
        """Let as many signs' time pass; whether the client is gone then."""
        self.now_ns += int(signs * SIGN_NS)
        return self.waiting.seek(self.place)

    def postprocess(self, delta: Delta) -> None:
        """What `postprocessing` does when no reader is left for a delta."""
        self.pool.abandoned[delta.numbers.place] = delta.numbers.session_id


def test_who_waited_at_a_place_before_is_not_taken_for_who_waits_there_now(pool: Pool) -> None:
    before, now = Scene(pool, streams=True), Scene(pool, streams=True)
    assert not before.wait(1.0)
    before.postprocess(before.client.sent[0])
    assert not now.wait(0.1)
    assert not now.wait(1.0)

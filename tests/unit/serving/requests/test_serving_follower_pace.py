"""When the one task looks at its streams, and for how long it gathers what they are owed."""

from __future__ import annotations

import asyncio

import pytest
from follower_double import Scene, comes_true

from card.cache import Finish, Pool, SlotState
from card.serving.requests.follower import TICK_S
from card.serving.requests.listening import Listener


@pytest.fixture
def scene(pool: Pool) -> Scene:
    return Scene(pool)


async def test_the_task_sleeps_until_something_is_open(scene: Scene) -> None:
    task = asyncio.ensure_future(scene.follower.run())
    await asyncio.sleep(0)
    client, slot = await scene.open()
    scene.target.commit(slot, [3] * 8, Finish.LENGTH)
    scene.target.release(slot)
    while not client.ended:
        await asyncio.sleep(0)
    assert client.texts == ["dddddddd"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_it_looks_often_at_beginnings_and_ends_and_otherwise_when_a_delta_is_due(
    pool: Pool,
) -> None:
    scene = Scene(pool, flush_ns=7_000_000)
    _, slot = await scene.open(max_tokens=100)
    assert scene.follower.pause_s(0) == 0.01
    scene.target.commit(slot, [3])
    scene.follower.tick(0)
    assert scene.follower.pause_s(1_000_000) == 0.006
    assert scene.follower.pause_s(8_000_000) == TICK_S
    await scene.open(max_tokens=100)
    assert scene.follower.pause_s(1_000_000) == 0.006


async def test_many_streams_gather_for_longer_but_first_and_last_deltas_leave_at_once(
    pool: Pool,
) -> None:
    scene = Scene(pool, flush_ns=10, deltas_per_s=1e9 / 20)  # two streams: each every 40 ns
    clients = [await scene.open() for _ in range(2)]
    for _, slot in clients:
        scene.target.commit(slot, [0])
    scene.follower.tick(100)
    for now_ns, token in ((120, 1), (139, 2)):
        for _, slot in clients:
            scene.target.commit(slot, [token])
        scene.follower.tick(now_ns)
    assert [client.texts for client, _ in clients] == [["a"], ["a"]]
    scene.follower.tick(140)
    assert [client.texts for client, _ in clients] == [["a", "bc"], ["a", "bc"]]
    (staying, stays), (_, leaves) = clients
    scene.target.commit(leaves, [3] * 5, Finish.LENGTH)
    scene.target.commit(stays, [4])
    scene.follower.tick(141)
    assert [client.texts[2:] for client, _ in clients] == [[], ["ddddd"]]
    scene.follower.tick(160)  # alone now, it waits for 20 ns
    assert staying.texts[2:] == ["e"]


async def test_it_looks_again_when_the_deltas_of_many_are_due(pool: Pool) -> None:
    scene = Scene(pool, flush_ns=1_000_000, deltas_per_s=2 / 0.008)
    _, leaves = await scene.open(max_tokens=2)
    _, stays = await scene.open(max_tokens=100)
    for slot in (leaves, stays):
        scene.target.commit(slot, [3])
    scene.follower.tick(0)
    assert scene.follower.pause_s(1_000_000) == 0.007
    scene.target.commit(leaves, [3], Finish.LENGTH)
    scene.follower.tick(1_000_000)
    assert scene.follower.pause_s(1_000_000) == 0.003, "alone it waits for half as long"


async def test_who_does_not_stream_makes_nobody_wait(pool: Pool) -> None:
    scene = Scene(pool, flush_ns=10, deltas_per_s=1e9 / 20)
    await scene.open(streams=False)
    client, slot = await scene.open()
    scene.target.commit(slot, [0])
    scene.follower.tick(100)
    scene.target.commit(slot, [1])
    scene.follower.tick(120)
    assert client.texts == ["a", "b"]


async def test_a_long_gathering_does_not_hide_what_else_may_happen(pool: Pool) -> None:
    scene = Scene(pool, flush_ns=10**9)
    _, streamed = await scene.open(max_tokens=100)
    _, whole = await scene.open(max_tokens=100, streams=False)
    for slot in (streamed, whole):
        scene.target.commit(slot, [3])
    scene.follower.tick(0)
    assert scene.follower.pause_s(0) == 0.01


async def test_a_beginning_an_end_and_a_release_are_looked_at_when_they_are_rung(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scene.follower, "pause_s", lambda now_ns: 3600.0)
    following = asyncio.create_task(scene.follower.run())
    listener = Listener(scene.pool.commit_bell, asyncio.get_running_loop(), scene.follower.wake)
    client, slot = await scene.open()
    scene.target.commit(slot, [3])
    await comes_true(lambda: client.texts == ["d"])
    scene.target.commit(slot, [4] * 7, Finish.LENGTH)
    await comes_true(lambda: client.ended == 1)
    scene.target.release(slot)
    await comes_true(lambda: scene.state(slot) is SlotState.FREE)
    assert client.texts == ["d", "e" * 7]
    following.cancel()
    listener.stop()


async def test_a_listener_that_was_stopped_calls_nobody(scene: Scene) -> None:
    calls: list[str] = []
    bell = scene.pool.commit_bell
    listener = Listener(bell, asyncio.get_running_loop(), lambda: calls.append("rang"))
    bell.ring()
    await comes_true(lambda: calls == ["rang"])
    listener.stop()
    bell.ring()
    await asyncio.sleep(0)
    assert calls == ["rang"]

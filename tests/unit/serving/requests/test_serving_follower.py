"""The one task: commits become responses, and every session ends once, whatever happens."""

from __future__ import annotations

import asyncio
import json

import pytest
from follower_double import Scene, comes_true

from card.cache import Finish, Pool, SlotState
from card.serving.requests import follower
from card.serving.requests.follower import TICK_S, Listener


@pytest.fixture
def scene(pool: Pool) -> Scene:
    return Scene(pool)


async def test_other_streams_go_on_while_scores_of_a_prompt_are_written(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "_SCORED_A_TICK", 1)
    scored, slot = await scene.open(return_prompt_log_probs=True)
    other, beside = await scene.open()
    scene.target.commit(slot, [3])
    for now_ns in (10, 20, 30):
        scene.target.commit(beside, [4])
        scene.follower.tick(now_ns)
        assert scene.follower.pause_s(now_ns) == TICK_S
    assert (scored.texts, other.texts) == ([], ["e", "e", "e"])
    scene.follower.tick(40)
    assert scored.texts == ["d"]
    assert [one["id"] for one in json.loads(scored.sent[0].details)["prompt"]] == [0, 1, 2]


async def test_text_that_is_due_at_every_look_does_not_outlast_a_deadline(scene: Scene) -> None:
    client, slot = await scene.open(deadline_ns=2)
    for now_ns in (1, 2):
        scene.target.commit(slot, [3])
        scene.follower.tick(now_ns)
    assert client.texts == ["d"]
    assert client.ended == 1
    assert client.errors[0].startswith("DEADLINE_EXCEEDED")


@pytest.mark.parametrize(
    ("finish", "error"),
    [
        (Finish.FAILED, "INTERNAL: "),
        (Finish.GUIDE_FAILED, "INVALID_ARGUMENT: guided_decoding_guide "),
        (Finish.GUIDE_ITEMS, "INVALID_ARGUMENT: guided_decoding_guide "),
        (Finish.GUIDE_FUEL, "INVALID_ARGUMENT: guided_decoding_guide "),
        (Finish.GUIDE_STATES, "INVALID_ARGUMENT: guided_decoding_guide "),
    ],
)
async def test_a_session_that_the_target_gave_up_gets_an_error(
    scene: Scene, finish: Finish, error: str
) -> None:
    client, slot = await scene.open()
    scene.target.fail(slot, finish)
    scene.follower.tick(1)
    assert client.errors[0].startswith(error)


async def test_streams_outlive_a_dead_target_but_not_for_ever(scene: Scene) -> None:
    client, slot = await scene.open()
    scene.target_is_dead = True
    second = 10**9
    scene.follower.tick(1 * second)
    scene.follower.tick(5 * second)
    assert client.errors == []
    scene.target_is_dead = False
    scene.target.commit(slot, [3])
    scene.follower.tick(6 * second)
    assert client.texts == ["d"]
    scene.target_is_dead = True
    scene.follower.tick(7 * second)
    scene.follower.tick(16 * second)
    assert client.errors == []
    scene.follower.tick(18 * second)
    assert client.errors[0].startswith("UNAVAILABLE: the target model has been down for 10 s")
    assert scene.sessions.in_use == 0


async def test_a_session_that_target_after_target_dies_over_is_given_up(scene: Scene) -> None:
    scene.targets_lost = 5  # before it came
    client, slot = await scene.open()
    other, others_slot = await scene.open()
    for death in range(2):
        assert client.errors == []
        scene.targets_lost += 1
        scene.follower.tick((2 * death + 1) * 10**9)
        if death == 0:
            scene.target.commit(others_slot, [3])
        scene.follower.tick((2 * death + 2) * 10**9)
    assert client.errors[0].startswith("INTERNAL: the target model died 2 times without a token")
    assert scene.state(slot) is not SlotState.OPEN
    assert other.errors == []
    assert scene.state(others_slot) is SlotState.OPEN


@pytest.mark.parametrize("is_last", [False, True])
async def test_a_response_that_cannot_be_sent_ends_its_request_alone(
    scene: Scene, is_last: bool
) -> None:
    client, slot = await scene.open()
    other, others_slot = await scene.open()
    client.unreachable = True
    scene.target.commit(slot, [3], Finish.LENGTH if is_last else Finish.RUNNING)
    scene.target.commit(others_slot, [4])
    scene.follower.tick(1)
    assert client.errors == ["INTERNAL: a response could not be sent; see the server's log"]
    assert client.ended == 1
    assert scene.state(slot) is not SlotState.OPEN
    assert scene.ledger.outcomes == ["internal"]  # a client that got an error had no success
    assert other.texts == ["e"]


async def test_a_target_that_gives_up_behind_a_stop_word_takes_no_text_away(scene: Scene) -> None:
    client, slot = await scene.open(stop_words=("e",))
    scene.target.commit(slot, [3, 4], Finish.FAILED)
    scene.follower.tick(1)
    assert (client.texts, client.ended, client.errors) == (["d"], 1, [])
    assert scene.ledger.outcomes == ["stop"]


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


async def test_a_beginning_an_end_and_a_release_are_looked_at_when_they_are_rung(
    pool: Pool,
) -> None:
    """Where no look comes for an hour."""
    hour_s = 3600
    scene = Scene(pool, flush_ns=hour_s * 10**9, longest_pause_s=hour_s)
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

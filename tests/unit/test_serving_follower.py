"""The one task: commits become responses, and every session ends once, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serving_double import HandPlayedTarget, make_pool, slot_request
from tokenizers import Tokenizer, decoders, models

from card.cache import Finish, Pool, SlotState
from card.serving.delta import Delta
from card.serving.follower import TICK_S, Answer, Follower
from card.serving.gathering import Gathering
from card.serving.listening import Listener
from card.serving.refusal import Refusal, UndeliverableError
from card.serving.sessions import Session, Sessions
from card.serving.streams import Stream
from card.serving.wire import TokenRequest
from card.text import Detokenizer

LETTERS = Tokenizer(models.WordLevel({chr(97 + i): i for i in range(26)}, unk_token="a"))
LETTERS.decoder = decoders.Fuse()
PATIENCE_S = 10.0
QUEUE = 4


class Client:
    """Remembers what it was sent."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.errors: list[str] = []
        self.ended = 0
        self.gone = False
        self.unreachable = False

    def send(self, delta: Delta, *, last: bool) -> None:
        if self.unreachable:
            raise UndeliverableError("no room")
        self.texts.append(delta.text)
        self.ended += last

    def fail(self, refusal: Refusal) -> None:
        self.errors.append(str(refusal))
        self.ended += 1

    def is_gone(self) -> bool:
        return self.gone


class Ledger:
    """Remembers what was counted."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.commits: list[tuple[int, int]] = []
        self.ends = 0
        self.in_use = 0

    def answered(self, session: Session, outcome: str) -> None:
        self.outcomes.append(outcome)

    def committed(self, session: Session, tokens: int, now_ns: int) -> None:
        self.commits.append((tokens, now_ns))

    def ended(self) -> None:
        self.ends += 1

    def occupancy(self, slots: int, queue: int) -> None:
        self.in_use = slots


class Scene:
    """A follower over a pool of two slots, with a target played by hand."""

    def __init__(self, pool: Pool, flush_ns: int = 0, deltas_per_s: float = 1e9) -> None:
        self.pool = pool
        self.target = HandPlayedTarget(pool)
        self.target_is_dead = False
        self.targets_lost = 0
        self.sessions = Sessions(pool, QUEUE, 30.0)
        self.ledger = Ledger()
        self.told: list[bool] = []
        self.follower = Follower(
            self.sessions,
            self.ledger,
            lambda: self.target_is_dead,
            lambda: self.targets_lost,
            PATIENCE_S,
            Gathering(flush_ns, deltas_per_s),
            self.told.append,
        )

    async def open(
        self,
        *,
        end_ids: tuple[int, ...] = (),
        deadline_ns: int | None = None,
        max_tokens: int = 8,
        streams: bool = True,
        **request: object,
    ) -> tuple[Client, int]:
        """Start answering a streamed request; the client, and the index of its slot."""
        client = Client()
        asked = TokenRequest(input_ids=(0, 1, 2), stream=streams, **request)  # type: ignore[arg-type]
        stream = Stream(
            asked,
            Detokenizer(LETTERS, (0, 1, 2), asked.stop_words),
            "",
            arrival_ns=0,
        )
        session = await self.sessions.admit(slot_request(max_tokens, end_ids), None, lambda: False)
        self.follower.follow(Answer(client, stream, session, deadline_ns))
        return client, session.slot.index

    def state(self, index: int) -> SlotState:
        return SlotState(int(self.pool.states[index]))


async def comes_true(holds: Callable[[], bool]) -> None:
    """Let the event loop go on until it holds."""

    async def turns() -> None:
        while not holds():
            await asyncio.sleep(0)

    await asyncio.wait_for(turns(), PATIENCE_S)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    pool = make_pool(tmp_path)
    yield pool
    pool.close()


@pytest.fixture
def scene(pool: Pool) -> Scene:
    return Scene(pool)


async def test_commits_become_deltas_and_the_last_ends_the_session(scene: Scene) -> None:
    client, slot = await scene.open()
    scene.target.commit(slot, [3, 4])
    scene.follower.tick(1)
    scene.follower.tick(2)
    scene.target.commit(slot, [5] * 6, Finish.LENGTH)
    scene.follower.tick(3)
    assert client.texts == ["de", "ffffff"]
    assert (client.ended, client.errors) == (1, [])
    assert scene.state(slot) is SlotState.CLOSED
    assert scene.ledger.outcomes == ["length"]


async def test_a_released_slot_is_freed_and_its_counters_are_final(scene: Scene) -> None:
    _, slot = await scene.open()
    scene.target.commit(slot, [3] * 8, Finish.LENGTH)
    scene.follower.tick(1)
    assert (scene.ledger.ends, scene.ledger.in_use) == (0, 1)
    scene.target.release(slot)
    scene.follower.tick(2)
    assert (scene.ledger.ends, scene.ledger.in_use) == (1, 0)
    assert scene.ledger.commits == [(8, 1)]
    assert scene.state(slot) is SlotState.FREE


async def test_the_end_id_stops_the_text_and_is_not_sent(scene: Scene) -> None:
    client, slot = await scene.open(end_ids=(24, 25))
    scene.target.commit(slot, [3, 25], Finish.END_ID)
    scene.follower.tick(1)
    assert client.texts == ["d"]
    assert scene.ledger.outcomes == ["stop"]


async def test_a_stop_word_closes_the_slot_though_the_target_would_go_on(scene: Scene) -> None:
    client, slot = await scene.open(stop_words=("e",))
    scene.target.commit(slot, [3, 4, 5])
    scene.follower.tick(1)
    assert (client.texts, client.ended) == (["d"], 1)
    assert scene.state(slot) is SlotState.CLOSED


async def test_sessions_do_not_hear_of_each_other(scene: Scene) -> None:
    first, one = await scene.open()
    second, two = await scene.open()
    scene.target.commit(one, [3])
    scene.target.commit(two, [4])
    scene.follower.tick(1)
    assert (first.texts, second.texts) == (["d"], ["e"])


async def test_a_deadline_ends_the_session_with_its_error(scene: Scene) -> None:
    client, slot = await scene.open(deadline_ns=100)
    scene.follower.tick(99)
    assert client.errors == []
    scene.follower.tick(100)
    assert client.errors == [
        "DEADLINE_EXCEEDED: timeout is over while decoding; send a larger timeout (microseconds)"
    ]
    assert scene.state(slot) is SlotState.CLOSED
    scene.follower.tick(101)
    assert client.ended == 1


async def test_text_that_is_due_at_every_look_does_not_outlast_a_deadline(scene: Scene) -> None:
    client, slot = await scene.open(deadline_ns=2)
    for now_ns in (1, 2):
        scene.target.commit(slot, [3])
        scene.follower.tick(now_ns)
    assert client.texts == ["d"]
    assert client.ended == 1
    assert client.errors[0].startswith("DEADLINE_EXCEEDED")


async def test_a_text_that_ends_with_its_deadline_is_an_answer(scene: Scene) -> None:
    client, slot = await scene.open(deadline_ns=1, max_tokens=1)
    scene.target.commit(slot, [3], Finish.LENGTH)
    scene.follower.tick(1)
    assert (client.texts, client.errors) == (["d"], [])


async def test_a_session_that_postprocessing_abandoned_is_closed(scene: Scene) -> None:
    client, slot = await scene.open()
    generation = int(scene.pool.generations[slot])
    scene.pool.postprocessing_slot(slot).abandon(generation)
    scene.follower.tick(1)
    assert client.errors == ["CANCELLED: the client left"]
    assert scene.state(slot) is SlotState.CLOSED


async def test_a_direct_client_that_left_is_noticed(scene: Scene) -> None:
    client, slot = await scene.open()
    client.gone = True
    scene.follower.tick(10**12)
    assert scene.state(slot) is SlotState.CLOSED
    assert scene.ledger.outcomes == ["cancelled"]


async def test_a_session_that_the_target_gave_up_gets_an_error(scene: Scene) -> None:
    client, slot = await scene.open()
    scene.target.fail(slot)
    scene.follower.tick(1)
    assert client.errors[0].startswith("INTERNAL: ")


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


async def test_targets_that_died_between_two_looks_are_counted_one_by_one(scene: Scene) -> None:
    client, _ = await scene.open()
    scene.targets_lost += 2
    scene.follower.tick(10**9)
    assert client.errors[0].startswith("INTERNAL: the target model died 2 times")


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
    assert other.texts == ["e"]


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


async def test_whether_the_queue_is_full_is_told_when_it_changes(scene: Scene) -> None:
    for _ in range(2):
        _, index = await scene.open()
    waiting = [asyncio.ensure_future(scene.open()) for _ in range(QUEUE)]
    for _ in range(2):
        scene.follower.tick(0)
    assert scene.told == []
    await asyncio.sleep(0)
    for now_ns in range(2):
        scene.follower.tick(now_ns)
    assert scene.told == [True]
    scene.target.commit(index, [1] * 8, Finish.LENGTH)
    scene.follower.tick(2)
    scene.target.release(index)
    scene.follower.tick(3)
    assert scene.told == [True, False]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()

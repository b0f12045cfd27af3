"""A client in the queue: given up when it leaves, and never bothered without need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving_double import make_pool

from card.cache import Pool
from card.serving.delta import SIGN_NS, Delta, Numbers
from card.serving.waiting import WaitingClient


class Client:
    """Remembers what it was sent; an ensemble's client never seems to leave."""

    def __init__(self) -> None:
        self.sent: list[Delta] = []
        self.gone = False

    def send(self, delta: Delta, *, last: bool) -> None:
        assert not last
        self.sent.append(delta)

    def is_gone(self) -> bool:
        return self.gone


class Scene:
    """A client that waits, on a clock of its own."""

    def __init__(self, pool: Pool, *, streams: bool) -> None:
        self.pool = pool
        self.now_ns = 10**9
        self.client = Client()
        sign = (lambda slot, number: Delta("", Numbers(slot, number))) if streams else None
        self.waiting = WaitingClient(self.client, pool, sign, clock_ns=lambda: self.now_ns)

    def wait(self, signs: float) -> bool:
        """Let as many signs' time pass; whether the client is gone then."""
        self.now_ns += int(signs * SIGN_NS)
        return self.waiting.is_gone()

    def postprocess(self, delta: Delta) -> None:
        """What `postprocessing` does when nobody is there to read a delta."""
        slot = self.pool.postprocessing_slot(delta.numbers.slot)
        slot.abandon(delta.numbers.generation)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    pool = make_pool(tmp_path)
    yield pool
    pool.close()


def test_a_streaming_client_gets_an_empty_delta_now_and_then(pool: Pool) -> None:
    scene = Scene(pool, streams=True)
    assert not scene.wait(0.9)
    assert scene.client.sent == []
    assert not scene.wait(0.2)
    assert not scene.wait(0.5)
    (sign,) = scene.client.sent
    assert sign.text == ""
    assert sign.numbers.finish_reason == 0
    assert not scene.wait(1.0)
    assert len(scene.client.sent) == 2


def test_a_client_that_postprocessing_saw_leave_is_gone(pool: Pool) -> None:
    scene, other = Scene(pool, streams=True), Scene(pool, streams=True)
    for each in (scene, other):
        assert not each.wait(1.0)
    scene.postprocess(scene.client.sent[0])
    assert scene.wait(0.1)
    assert not other.wait(0.1)


def test_no_session_is_mistaken_for_one_that_waits(pool: Pool) -> None:
    scene = Scene(pool, streams=True)
    assert not scene.wait(1.0)
    generation = pool.new_generation()
    for slot in range(pool.geometry.slots):
        pool.postprocessing_slot(slot).abandon(generation)
    assert generation != scene.client.sent[0].numbers.generation
    assert not scene.wait(0.1)


def test_a_client_that_wants_one_response_gets_no_other(pool: Pool) -> None:
    scene = Scene(pool, streams=False)
    assert not scene.wait(5.0)
    assert scene.client.sent == []


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_card_itself_sees_leave_is_gone(pool: Pool, streams: bool) -> None:
    scene = Scene(pool, streams=streams)
    scene.client.gone = True
    assert scene.wait(5.0)
    assert scene.client.sent == []

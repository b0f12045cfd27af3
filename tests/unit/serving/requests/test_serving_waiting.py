"""A client in the queue: given up when it leaves, and never bothered without need."""

from __future__ import annotations

import pytest

from card.cache import Pool
from card.serving.requests.delta import SIGN_NS, Delta, Numbers
from card.serving.requests.waiting import WaitingClient


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
        return self.waiting.is_gone(self.place)

    def postprocess(self, delta: Delta) -> None:
        """What `postprocessing` does when nobody is there to read a delta."""
        self.pool.abandoned[delta.numbers.place] = delta.numbers.session_id


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
    scene, other = (Scene(pool, streams=True, place=place) for place in (1, 2))
    for each in (scene, other):
        assert not each.wait(1.0)
    scene.postprocess(scene.client.sent[0])
    assert scene.wait(0.1)
    assert not other.wait(0.1)


def test_all_who_leave_together_are_gone_before_another_sign(pool: Pool) -> None:
    scenes = [Scene(pool, streams=True, place=place) for place in range(pool.geometry.queue)]
    for each in scenes:
        assert not each.wait(1.0)
        each.postprocess(each.client.sent[0])
    assert all(each.wait(0.5) for each in scenes)


def test_who_waited_at_a_place_before_is_not_taken_for_who_waits_there_now(pool: Pool) -> None:
    before, now = Scene(pool, streams=True), Scene(pool, streams=True)
    assert not before.wait(1.0)
    before.postprocess(before.client.sent[0])
    assert not now.wait(0.1)
    assert not now.wait(1.0)


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

"""The supervisor hears the engines in the pool that `card` has made, whichever that is."""

from __future__ import annotations

import os
from pathlib import Path

from card.cache import EngineState, Geometry, Pool, SlotState
from card.serving.supervision.heartbeats import Heartbeats

SERVER = 4711
GEOMETRY = Geometry(2, 16, 8, 8, 2, 4)


def test_a_pool_is_heard_as_soon_as_it_is_there_and_only_its_own_process(tmp_path: Path) -> None:
    heartbeats = Heartbeats(tmp_path, SERVER, GEOMETRY)
    assert heartbeats.of("target", os.getpid()) is None
    assert heartbeats.open_slots() == 0
    pool = Pool.create(tmp_path, SERVER, GEOMETRY)
    assert heartbeats.of("target", os.getpid()) is None, "it has not beaten yet"
    pool.beat("target", EngineState.ATTACHED)
    pulse = heartbeats.of("target", os.getpid())
    assert pulse is not None
    assert pulse.attached
    assert heartbeats.of("target", os.getpid() + 1) is None
    heartbeats.close()
    pool.close()


def test_card_is_heard_from_its_first_beat_on_and_none_before_it(tmp_path: Path) -> None:
    heartbeats = Heartbeats(tmp_path, SERVER, GEOMETRY)
    assert heartbeats.card_silence_s(os.getpid()) == 0.0
    pool = Pool.create(tmp_path, SERVER, GEOMETRY)
    assert heartbeats.card_silence_s(os.getpid()) == 0.0, "it has not beaten yet"
    pool.beat("card")
    pool.header["card_heartbeat_ns"] -= 20_000_000_000
    assert 20.0 <= heartbeats.card_silence_s(os.getpid()) < 200.0
    assert heartbeats.card_silence_s(os.getpid() + 1) == 0.0, "that was its predecessor"
    pool.close()
    pool = Pool.create(tmp_path, SERVER, GEOMETRY)
    assert heartbeats.card_silence_s(os.getpid()) == 0.0, "a successor may have the same number"
    heartbeats.close()
    pool.close()


def test_the_pool_of_a_card_that_came_back_behind_a_sweep_is_heard(tmp_path: Path) -> None:
    """Another service of this user swept what nobody locked for a moment."""
    heartbeats = Heartbeats(tmp_path, SERVER, GEOMETRY)
    lost = Pool.create(tmp_path, SERVER, GEOMETRY)
    lost.beat("target", EngineState.LOADED)
    lost.slots["state"][0] = SlotState.OPEN
    assert heartbeats.open_slots() == 1
    lost.close()
    assert Pool.sweep(tmp_path)
    assert heartbeats.open_slots() == 0
    pool = Pool.create(tmp_path, SERVER, GEOMETRY)
    pool.beat("target", EngineState.ATTACHED)
    pulse = heartbeats.of("target", os.getpid())
    assert pulse is not None
    assert pulse.attached
    heartbeats.close()
    pool.close()

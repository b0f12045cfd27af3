"""Processes of an engine that ended are counted one by one, however short they lived."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from child_process import child
from serving_double import make_pool

from card.cache import EngineState, Pool
from card.serving.triton.attach import Losses, is_dead

LIVING = "import sys; sys.stdin.read()"


def announce(pool: Pool, pid: int, state: EngineState) -> None:
    """As an engine process does by its first heartbeat."""
    pool.header["target_pid"] = pid
    pool.header["target_state"] = state


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_each_ended_process_counts_once(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    losses = Losses(pool, "target")
    assert losses.count() == 0, "nobody was ever there"
    with child(sys.executable, "-c", LIVING) as first:
        announce(pool, first.pid, EngineState.ATTACHED)
        assert losses.count() == 0
        end(first)
        assert [losses.count(), losses.count()] == [1, 1]
    with child(sys.executable, "-c", LIVING) as second:
        announce(pool, second.pid, EngineState.LOADED)
        assert is_dead(pool, "target"), "not attached yet"
        assert losses.count() == 1, "but it lives"
        end(second)
        assert losses.count() == 2, "it was never seen attached"
    pool.close()


def test_a_process_whose_successor_is_there_already_has_ended(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    losses = Losses(pool, "target")
    with child(sys.executable, "-c", LIVING) as first:
        announce(pool, first.pid, EngineState.ATTACHED)
        assert losses.count() == 0
        announce(pool, os.getpid(), EngineState.LOADED)
        assert [losses.count(), losses.count()] == [1, 1]
    pool.close()

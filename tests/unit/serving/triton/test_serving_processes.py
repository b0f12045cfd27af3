"""Processes of engines: those that ended are counted, and who may not attach is told of seldom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from child_process import child
from serving_double import make_pool

from card.cache import EngineState, Pool
from card.serving.log import open_log
from card.serving.triton.attach import QUIET_S, Denials, Losses, is_dead

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
    assert losses.count() == 0, "no process was ever there"
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


def test_many_denials_are_one_line_now_and_one_later(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 100.0
    denials = Denials(open_log("target", "text"), lambda: now_s)
    for _ in range(500):
        denials.count()
    (line,) = capsys.readouterr().err.splitlines()
    assert "level=warning component=target event=attach_refused requests=1" in line
    now_s += QUIET_S
    denials.count()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("requests=500")

"""What a fleet does with a replica that has ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet import replica
from fleet.replica import ReplicaProcess


@pytest.fixture
def ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReplicaProcess:
    """A replica whose program waits for a line, and ends with the code that it says."""

    def spawned(command: object, output: Any, variables: object) -> subprocess.Popen[bytes]:
        program = [sys.executable, "-c", "raise SystemExit(int(input()))"]
        return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=output, stderr=output)

    monkeypatch.setattr(replica, "spawned", spawned)
    monkeypatch.setattr(replica, "RESTART_S", 0.0)
    made = ReplicaProcess({}, tmp_path / "log")
    made.start()
    return made


def end(one: ReplicaProcess, code: int) -> int:
    assert one._process is not None
    one._process.communicate(f"{code}\n".encode())
    return one.pid


def test_a_replica_starts_again_when_it_was_lost(
    ending: ReplicaProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not ending.starts_again_if_lost()
    lost = end(ending, 1)
    assert ending.starts_again_if_lost()
    assert end(ending, 1) != lost
    monkeypatch.setattr(replica, "RESTART_S", 3600.0)
    assert not ending.starts_again_if_lost(), "it started a moment ago"


def test_a_replica_stays_away_when_it_was_drained(ending: ReplicaProcess) -> None:
    end(ending, 0)
    assert not ending.starts_again_if_lost()

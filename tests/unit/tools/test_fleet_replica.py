"""What a fleet does with a replica that has ended."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fleet import running
from fleet.running import PORTS, ReplicaProcess


@pytest.fixture
def ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReplicaProcess:
    """A replica whose program reads its exit code from a pipe and ends with it."""
    monkeypatch.setattr(running, "RESTART_S", 0.0)
    made = ReplicaProcess(dict.fromkeys(PORTS, 1), tmp_path / "log")
    os.mkfifo(tmp_path / "code")
    program = f"raise SystemExit(int(open({str(tmp_path / 'code')!r}).read()))"
    made.command = [sys.executable, "-c", program]
    made.start()
    return made


def end(one: ReplicaProcess, code: int) -> int:
    folder = Path(one.command[-1].split("'")[1]).parent
    (folder / "code").write_text(str(code))
    one.wait()
    return one.process.pid


def test_replica_when_lost_starts_again(
    ending: ReplicaProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not ending.starts_again_if_lost()
    lost = end(ending, 1)
    assert ending.starts_again_if_lost()
    assert end(ending, 1) != lost
    monkeypatch.setattr(running, "RESTART_S", 3600.0)
    assert not ending.starts_again_if_lost(), "it started a moment ago"


def test_replica_when_drained_stays_away(ending: ReplicaProcess) -> None:
    end(ending, 0)
    assert not ending.starts_again_if_lost()

"""When the supervisor takes its guard for lost, and what it wants before it starts one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from told_clock import ToldClock

from card.serving.supervision.guard import (
    LONGEST_SOCKET,
    PROGRAM,
    GuardProcess,
    check_guard,
    triton_socket,
)
from card.serving.supervision.watch import Starvation
from card.settings import ServingSettings, Settings

SERVING = ServingSettings(guard=True, engine_timeout_s=2.0)
SETTINGS = Settings(serving=SERVING)


@pytest.fixture
def guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ToldClock
) -> Iterator[GuardProcess]:
    """A guard whose program ends at once."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / f"{PROGRAM}.py").write_text("raise SystemExit(2)")
    starvation = Starvation(lambda pid: {}, clock)
    process = GuardProcess(SETTINGS, tmp_path / "grpc:1", clock, starvation)
    yield process
    process.close()


def end(guard: GuardProcess) -> None:
    """Wait until it has ended by itself."""
    while not guard.ended:
        os.sched_yield()


def pass_time(guard: GuardProcess, clock: ToldClock, seconds: float) -> None:
    """In looks around as the supervisor makes them."""
    for _ in range(round(10 * seconds)):
        clock.now_s += 0.1
        guard.look()


def test_guard_when_it_ends_again_and_again_restarts_more_rarely(
    guard: GuardProcess, clock: ToldClock
) -> None:
    for pause_s in (1, 2, 4, 8, 16, 32, 60, 60):
        end(guard)
        guard.look()
        assert (guard.condition, guard.ended) == ("gone", "exit code 2")
        assert "(exit code 2); its own message" in guard.refusal
        pass_time(guard, clock, pause_s - 0.2)
        assert guard.replace() is None
        pass_time(guard, clock, 0.4)
        assert guard.replace() == "ended (exit code 2)"


def test_directory_is_refused_when_a_socket_in_it_has_too_long_a_path(tmp_path: Path) -> None:
    assert check_guard(SERVING, tmp_path) is None
    left = LONGEST_SOCKET - len(str(triton_socket(Path("/"), SERVING.grpc_port)))
    fits = Path("/" + "d" * (left - 1))
    assert check_guard(SERVING, fits) is None
    assert "cache.directory is too long a path" in str(check_guard(SERVING, Path(f"{fits}d")))

"""When the supervisor takes its guard for lost, and what it wants before it starts one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from told_clock import ToldClock

from card.serving.supervision.guard import (
    LONGEST_SOCKET,
    PROGRAM,
    GuardProcess,
    check_guard,
    triton_socket,
)
from card.serving.supervision.watch import Starvation, Thread
from card.settings import ServingSettings, Settings

BEATS_ONCE = """
import os, signal, sys
(option,) = [word for word in sys.argv if word.startswith("--beats=")]
os.write(int(option.partition("=")[2]), b".")
signal.pause()
"""
ENDS = "raise SystemExit(2)"
SERVING = ServingSettings(guard=True, engine_timeout_s=2.0)
SETTINGS = Settings(serving=SERVING)

Start = Callable[..., GuardProcess]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ToldClock) -> Iterator[Start]:
    """A guard whose program is the text given."""
    started: list[GuardProcess] = []
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def begin(program: str, **threads: Thread) -> GuardProcess:
        (tmp_path / f"{PROGRAM}.py").write_text(program)
        starvation = Starvation(lambda pid: dict(enumerate(threads.values())), clock)
        started.append(GuardProcess(SETTINGS, tmp_path / "grpc:1", clock, starvation))
        return started[-1]

    yield begin
    for process in started:
        process.close()


def hear(guard: GuardProcess) -> None:
    """Look until its beat has come."""
    while guard.condition != "well":
        os.sched_yield()
        guard.look()


def end(guard: GuardProcess) -> None:
    """Wait until it has ended by itself."""
    while not guard.ended:
        os.sched_yield()


def pass_time(guard: GuardProcess, clock: ToldClock, seconds: float) -> None:
    """In looks around as the supervisor makes them."""
    for _ in range(round(10 * seconds)):
        clock.now_s += 0.1
        guard.look()


def test_a_pause_of_the_whole_machine_is_no_silence(start: Start, clock: ToldClock) -> None:
    guard = start(BEATS_ONCE)
    hear(guard)
    clock.now_s += 3600.0
    guard.look()
    assert (guard.condition, guard.replace()) == ("well", None)


def test_one_that_ends_is_started_again_ever_more_rarely(start: Start, clock: ToldClock) -> None:
    guard = start(ENDS)
    for pause_s in (1, 2, 4, 8, 16, 32, 60, 60):
        end(guard)
        guard.look()
        assert (guard.condition, guard.ended) == ("gone", "exit code 2")
        assert "(exit code 2); its own message" in guard.refusal
        pass_time(guard, clock, pause_s - 0.2)
        assert guard.replace() is None
        pass_time(guard, clock, 0.4)
        assert guard.replace() == "ended (exit code 2)"


def test_a_machine_without_processes_is_asked_again(
    start: Start, clock: ToldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = start(BEATS_ONCE)
    hear(guard)
    pass_time(guard, clock, SERVING.engine_timeout_s + 0.2)
    with monkeypatch.context() as full:
        full.setattr(os, "pipe", Mock(side_effect=OSError(errno.EMFILE, "too many open files")))
        with pytest.raises(OSError, match="too many open files"):
            guard.replace()
        guard.look()
        assert guard.condition == "gone"
    pass_time(guard, clock, 2.2)
    assert guard.replace() is not None
    hear(guard)


def test_directory_is_refused_when_a_socket_in_it_has_too_long_a_path(tmp_path: Path) -> None:
    assert check_guard(SERVING, tmp_path) is None
    left = LONGEST_SOCKET - len(str(triton_socket(Path("/"), SERVING.grpc_port)))
    fits = Path("/" + "d" * (left - 1))
    assert check_guard(SERVING, fits) is None
    assert "cache.directory is too long a path" in str(check_guard(SERVING, Path(f"{fits}d")))

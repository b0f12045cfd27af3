"""An engine's process: found, attached, heard; and given up when it is of no use."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serving_double import GEOMETRY, make_pool

from card.cache import EngineState, Pool
from card.serving.log import open_log
from card.serving.requests.refusal import Refusal
from card.serving.triton.attach import QUIET_S, Attacher, Denials, is_dead
from card.serving.triton.engine_process import BEAT_S, EngineProcess

FAR_NS = 2**62
TIMEOUT_S = 0.3
LIMIT_S = 600.0
LONG_NS = 10**15
"""Longer than anybody waits."""


class Loop:
    """Counts its steps; can be made to hang or to fail."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.stepped = threading.Event()
        self.hang = threading.Event()
        self.hang.set()
        self.failure: Exception | None = None
        self.is_idle = False

    def step(self) -> bool:
        if self.failure is not None:
            raise self.failure
        self.stepped.set()
        self.hang.wait()
        return False


class Engine:
    """A target's process whose "death" is remembered."""

    def __init__(self, directory: Path, beat_s: float = BEAT_S) -> None:
        self.loops: list[Loop] = []
        self.made = threading.Event()
        self.died = threading.Event()
        self.status: int | None = None
        self.process = EngineProcess(
            "target",
            directory,
            GEOMETRY,
            self._make_loop,
            engine_timeout_s=TIMEOUT_S,
            server_pid=os.getpid(),
            beat_s=beat_s,
            die=self._die,
        )

    def _make_loop(self, pool: Pool) -> Loop:
        self.loops.append(Loop(pool))
        self.made.set()
        return self.loops[-1]

    def _die(self, status: int) -> None:
        self.status = status
        self.died.set()

    def attach(self, key: str) -> int:
        epoch = self.process.attach(key, FAR_NS)
        assert self.made.wait(5)
        return epoch


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Started, as a child of this process's "server"."""
    monkeypatch.setattr(os, "getppid", os.getpid)
    engine = Engine(tmp_path)
    engine.process.start()
    yield engine
    for loop in engine.loops:
        loop.hang.set()
    engine.process.stop()


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether `holds()` within some seconds, looking again and again."""
    limit, pause = time.monotonic() + 5, threading.Event()
    while not holds() and time.monotonic() < limit:
        pause.wait(0.01)
    return holds()


def state(pool: Pool) -> EngineState:
    return pool.engine_state("target")


def test_an_attach_request_read_too_late_is_refused(engine: Engine, tmp_path: Path) -> None:
    key = make_pool(tmp_path).new_key()
    with pytest.raises(Refusal, match="DEADLINE_EXCEEDED"):
        engine.process.attach(key, time.monotonic_ns() - 1)


def test_a_new_pool_is_found_and_gets_a_loop_of_its_own(engine: Engine, tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    engine.attach(pool.new_key())
    pool.unlink()
    pool.close()
    successor = make_pool(tmp_path)
    assert eventually(lambda: state(successor) is EngineState.LOADED)
    engine.made.clear()
    engine.attach(successor.new_key())
    assert eventually(lambda: state(successor) is EngineState.ATTACHED)
    assert [loop.pool.path for loop in engine.loops] == [pool.path, successor.path]


def test_an_engine_stuck_in_a_step_falls_silent(engine: Engine, tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    engine.attach(pool.new_key())
    engine.loops[0].hang.clear()
    assert eventually(lambda: pool.silence_s("target") > 2 * TIMEOUT_S)
    engine.loops[0].hang.set()
    assert eventually(lambda: pool.is_alive("target", TIMEOUT_S))


def test_a_loop_that_fails_ends_the_process(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = make_pool(tmp_path)
    engine.attach(pool.new_key())
    engine.loops[0].failure = RuntimeError("no such row")
    assert engine.died.wait(5)
    assert engine.status == 1
    assert "no such row" in caplog.text


class Asked:
    """What `card` asked of the engines."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.reports: list[tuple[str, bool]] = []
        self.hanging = threading.Event()
        self.hanging.set()
        self.begun = threading.Semaphore(0)

    def ask(self, engine: str, key: str, deadline_ns: int) -> None:
        self.requests.append((engine, key))
        self.begun.release()
        self.hanging.wait(5)

    def report(self, engine: str, alive: bool) -> None:
        self.reports.append((engine, alive))


@pytest.fixture
def asked() -> Iterator[Asked]:
    asked = Asked()
    yield asked
    asked.hanging.set()


def attacher_of(pool: Pool, asked: Asked) -> Attacher:
    return Attacher(pool, "key", LIMIT_S, asked.ask, asked.report, fresh_s=LIMIT_S)


def test_an_engine_is_not_asked_twice_while_it_may_still_answer(
    tmp_path: Path, asked: Asked
) -> None:
    asked.hanging.clear()
    pool = make_pool(tmp_path)
    attacher = attacher_of(pool, asked)
    for _ in range(3):
        pool.beat("target", EngineState.LOADED)
        attacher.look()
    assert asked.begun.acquire(timeout=5)
    assert len(asked.requests) == 1


def test_a_silent_engine_is_never_sent_anything(tmp_path: Path, asked: Asked) -> None:
    pool = make_pool(tmp_path)
    attacher = attacher_of(pool, asked)
    pool.beat("target", EngineState.LOADED)
    pool.header["target_heartbeat_ns"] -= LONG_NS
    attacher.look()
    assert asked.requests == []


def test_an_attached_process_is_dead_only_when_it_has_ended(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    assert is_dead(pool, "target")
    pool.beat("target", EngineState.ATTACHED)
    pool.header["target_heartbeat_ns"] -= 10**10
    assert not is_dead(pool, "target")  # silent, but it may go on
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    pool.header["target_pid"] = child.pid
    assert is_dead(pool, "target")  # a zombie
    child.wait()
    assert is_dead(pool, "target")


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

"""A supervisor over a server that is none: what it does where a machine has no process to spare,
and once it is to stop."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from told_clock import ToldClock

from card.serving.supervision import service as service_module
from card.serving.supervision import supervisor as module
from card.serving.supervision.policy import ProcessState, ServerSight, Sight
from card.serving.supervision.residue import RunDirectory
from card.serving.supervision.service import Service
from card.serving.supervision.startup import ShortageError
from card.serving.supervision.stop_requests import StopRequests
from card.serving.supervision.supervisor import LOOK_S, Supervisor
from card.serving.supervision.triton_server import find_triton
from card.settings import Settings, load_settings


class FakeTriton:
    """Remembers which were started and killed."""

    started = 0
    killed = 0
    pid = os.getpid()

    def __init__(self, *_: object) -> None:
        FakeTriton.started += 1

    def kill(self) -> None:
        FakeTriton.killed += 1


def no_process(*_: object) -> None:
    raise BlockingIOError(11, "Resource temporarily unavailable")


@pytest.fixture
def guarded(tmp_path: Path) -> Settings:
    file = tmp_path / "settings.yaml"
    binary = tmp_path / "opt/bin/tritonserver"
    stub = tmp_path / "opt/backends/python/triton_python_backend_stub"
    for program in (binary, stub):
        program.parent.mkdir(parents=True)
        program.touch(0o755)
    file.write_text(
        f"cache: {{directory: {tmp_path}}}\nserving: {{guard: true, tritonserver: {binary}}}"
    )
    return load_settings(file)


@pytest.fixture(autouse=True)
def no_guard_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HealthServer", lambda *_, **__: HealthNobodyAsks())
    monkeypatch.setattr(FakeTriton, "started", 0)
    monkeypatch.setattr(FakeTriton, "killed", 0)
    monkeypatch.setattr(service_module, "TritonProcess", FakeTriton)
    monkeypatch.setattr(service_module, "GuardProcess", no_process)


def test_a_server_whose_guard_cannot_be_started_is_killed(
    guarded: Settings, tmp_path: Path
) -> None:
    server = guarded.serving.tritonserver
    assert server is not None
    with pytest.raises(OSError, match="temporarily unavailable"):
        Service(guarded, tmp_path, find_triton(tmp_path, server), RunDirectory(tmp_path))
    assert (FakeTriton.started, FakeTriton.killed) == (1, 1)


class HealthNobodyAsks:
    def publish(self, health: object) -> None: ...

    def close(self) -> None: ...


def test_the_first_start_gives_up_and_says_why(
    guarded: Settings,
) -> None:
    supervisor = Supervisor(guarded, Path(), StopRequests())
    with pytest.raises(ShortageError, match=r"the server cannot be started: .*unavailable"):
        supervisor.run()
    assert FakeTriton.killed == FakeTriton.started == 1


class FakeService:
    """Ready at once, and then asked to stop; each look at it takes a moment on the clock."""

    stubs = ()
    guard = None
    has_served = False
    ensemble_ready = True
    server = SimpleNamespace(pid=1, state=ProcessState.RUNNING)
    server_sight = ServerSight(ProcessState.RUNNING)

    def __init__(self, open_slots: int, idle: bool, again: bool) -> None:
        self.open_slots = open_slots
        self.stop, self.clock = StopRequests(), ToldClock()
        self.looks = 0
        self._idle = idle
        self._again = again

    def is_complete(self) -> bool:
        return True

    def sights(self) -> dict[str, Sight]:
        self.clock.now_s += LOOK_S
        self.looks += 1
        return {}

    def conceal_header(self) -> bool:
        self.stop.ask()
        return True

    def refuse(self) -> None:
        self.looks = 0
        if self._again:
            self.stop.ask()

    def retire(self) -> None:
        assert self.looks, "the last responses may not have left"

    def is_idle(self) -> bool:
        return self._idle

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("service", "told"),
    [
        (FakeService(0, idle=True, again=False), []),
        (FakeService(1, idle=True, again=False), [("cut_off", "the drain limit is reached")]),
        (FakeService(1, idle=True, again=True), [("cut_off", "there was another signal to stop")]),
        (
            FakeService(0, idle=False, again=False),
            [("not_idle", "no session for 2 s, yet Triton holds a model")],
        ),
    ],
    ids=["all are answered", "a long text", "a second signal", "a client that left"],
)
def test_a_service_that_is_to_stop_waits_for_what_is_open_and_not_for_ever(
    guarded: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    service: FakeService,
    told: list[tuple[str, str]],
) -> None:
    monkeypatch.setattr(module, "Service", lambda *_: service)
    serving = guarded.serving.model_copy(update={"drain_s": 3.0})
    settings = guarded.model_copy(update={"serving": serving})
    with caplog.at_level(logging.INFO, "card"):
        Supervisor(settings, Path(), service.stop, service.clock).run()
    events = [
        (record.msg, getattr(record, "fields", {}).get("reason")) for record in caplog.records
    ]
    assert [event for event in events if event[0] in ("cut_off", "not_idle")] == told

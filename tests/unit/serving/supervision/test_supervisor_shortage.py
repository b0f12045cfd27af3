"""A machine without a process to spare: nothing is left, and it is said in words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from card.serving.supervision import service as service_module
from card.serving.supervision import supervisor as module
from card.serving.supervision.residue import RunDirectory
from card.serving.supervision.service import Service
from card.serving.supervision.startup import ShortageError
from card.serving.supervision.stop_requests import StopRequests
from card.serving.supervision.supervisor import START_ATTEMPTS, Supervisor
from card.serving.supervision.triton_server import named_install
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
        Service(guarded, tmp_path, named_install(server), RunDirectory(tmp_path))
    assert (FakeTriton.started, FakeTriton.killed) == (1, 1)


def started_supervisor(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    monkeypatch.setattr(module, "HealthServer", lambda *_, **__: HealthNobodyAsks())
    return Supervisor(settings, Path(), StopRequests())


class HealthNobodyAsks:
    def publish(self, health: object) -> None: ...

    def close(self) -> None: ...


def test_the_first_start_gives_up_and_says_why(
    guarded: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = started_supervisor(guarded, monkeypatch)
    with pytest.raises(ShortageError, match=r"the server cannot be started: .*unavailable"):
        supervisor.run()
    assert FakeTriton.killed == FakeTriton.started == 1


def test_a_restart_is_tried_again_after_a_pause(
    guarded: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShortageError, "pause_s", 0.01)
    supervisor = started_supervisor(guarded, monkeypatch)
    with pytest.raises(ShortageError):
        supervisor._restart("it died")
    assert FakeTriton.killed == FakeTriton.started == START_ATTEMPTS

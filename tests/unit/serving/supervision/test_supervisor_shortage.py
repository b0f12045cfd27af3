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
from card.serving.supervision.triton_server import TritonInstall
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
    file.write_text(f"cache: {{directory: {tmp_path}}}\nserving: {{guard: true}}")
    return load_settings(file)


@pytest.fixture
def install() -> TritonInstall:
    return None  # type: ignore[return-value]  # a fake server needs none


@pytest.fixture(autouse=True)
def no_guard_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeTriton, "started", 0)
    monkeypatch.setattr(FakeTriton, "killed", 0)
    monkeypatch.setattr(service_module, "TritonProcess", FakeTriton)
    monkeypatch.setattr(service_module, "GuardProcess", no_process)


def test_a_server_whose_guard_cannot_be_started_is_killed(
    guarded: Settings, install: TritonInstall, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="temporarily unavailable"):
        Service(guarded, tmp_path, install, RunDirectory(tmp_path))
    assert (FakeTriton.started, FakeTriton.killed) == (1, 1)


def started_supervisor(
    settings: Settings, install: TritonInstall, monkeypatch: pytest.MonkeyPatch
) -> Supervisor:
    monkeypatch.setattr(module, "_install", lambda *_: install)
    monkeypatch.setattr(module, "HealthServer", lambda *_, **__: HealthNobodyAsks())
    return Supervisor(settings, Path(), StopRequests())


class HealthNobodyAsks:
    def publish(self, health: object) -> None: ...

    def close(self) -> None: ...


def test_the_first_start_gives_up_and_says_why(
    guarded: Settings, install: TritonInstall, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = started_supervisor(guarded, install, monkeypatch)
    with pytest.raises(ShortageError, match=r"the server cannot be started: .*unavailable"):
        supervisor.run()
    assert FakeTriton.killed == FakeTriton.started == 1


def test_a_restart_is_tried_again_after_a_pause(
    guarded: Settings, install: TritonInstall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShortageError, "pause_s", 0.01)
    supervisor = started_supervisor(guarded, install, monkeypatch)
    with pytest.raises(ShortageError):
        supervisor._restart("it died")
    assert FakeTriton.killed == FakeTriton.started == START_ATTEMPTS

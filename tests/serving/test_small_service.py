"""The supervisor over small processes: each is killed or stopped, and the service comes back.

Real signals, real processes, a server that serves nothing; what Triton itself does under such
faults is tried in `tests/serving`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from child_process import child
from real_pair import DRAFT, TARGET
from small_triton import Installation

from card.serving.geometry import pool_geometry
from card.serving.supervision.processes import REGIONS
from card.serving.supervision.states import PROBATION_S, STUBS
from card.settings import load_settings
from loading.supervised import open_local, reserved_serving

LONG_S = 60.0
KILL, STOP = signal.SIGKILL, signal.SIGSTOP


@dataclass
class Service:
    """A supervisor in a process of its own, and its small server."""

    folder: Path
    file: Path
    port: int
    installation: Installation
    process: subprocess.Popen[bytes]
    log: Path
    tokens: set[str] = field(default_factory=set)

    def ask(self, path: str = "/ready") -> tuple[int, dict[str, Any]]:
        """Status and JSON of the health port; status 0 while it is closed."""
        try:
            with open_local(f"http://127.0.0.1:{self.port}{path}", 10.0) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as answer:
            return answer.code, json.load(answer)
        except OSError:
            return 0, {}

    def pid_of(self, victim: str) -> int:
        _, seen = self.ask()
        return int(seen["server_pid"] if victim == "server" else seen["models"][victim]["pid"])

    def until(self, holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Ask `/ready` until `holds`; returns what it said."""
        limit_s = time.monotonic() + LONG_S
        while True:
            _, seen = self.ask()
            if seen and holds(seen):
                return seen
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < limit_s, f"never: {what}: {seen}"
            time.sleep(0.02)

    def until_back_without(self, lost: set[int]) -> dict[str, Any]:
        def back(seen: dict[str, Any]) -> bool:
            pids = {seen["server_pid"], *(model["pid"] for model in seen["models"].values())}
            return seen["state"] == "ready" and not pids & lost

        return self.until(back, f"back without {lost}")

    def events(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def left(self) -> list[object]:
        """Files and processes that the service left."""
        token = self.folder.name
        own = [p for p in psutil.process_iter() if any(token in word for word in _words(p))]
        return [*(self.folder / "shared").iterdir(), *own, *self.regions()]

    def stubs_of(self, model: str) -> set[int]:
        """Processes that run a model of this service."""
        token, program = self.folder.name, f"/{model}/1/model.py"
        return {
            p.pid
            for p in psutil.process_iter()
            if any(token in word and word.endswith(program) for word in _words(p))
        }

    def regions(self) -> set[Path]:
        """Files of the stubs in shared memory."""
        if not self.tokens:
            runs = (self.folder / "shared").glob("card_run_*")
            self.tokens = {run.name.rpartition("_")[2] for run in runs}
        return {region for token in self.tokens for region in REGIONS.glob(f"*_{token}_*")}


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def settings_file(folder: Path, ports: dict[str, int]) -> tuple[Path, Installation]:
    (folder / "shared").mkdir()
    serving = {**ports, "engine_timeout_s": 1.0, "load_timeout_s": LONG_S}
    content: dict[str, Any] = {
        "target": {"path": str(TARGET)},
        "draft": {"path": str(DRAFT)},
        "cache": {"directory": str(folder / "shared"), "slots": 2},
        "serving": {**serving, "tritonserver": str(folder / "opt/bin/tritonserver")},
        "observability": {"log_format": "json"},
    }
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    installation = Installation(
        folder / "opt", folder / "shared", pool_geometry(load_settings(file))
    )
    return file, installation


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("small-service")
    with reserved_serving() as ports:
        file, installation = settings_file(folder, ports)
        log = folder / "log"
        command = [
            *(sys.executable, "-m", "card.serving.supervisor"),
            *(f"--settings={file}", f"--model-repository={installation.models}"),
        ]
        with log.open("wb") as output, child(*command, stderr=output.fileno()) as process:
            port = ports["health_port"]
            yield Service(folder, file, port, installation, process, log)


CELLS: list[tuple[tuple[str, ...], signal.Signals, bool]] = [
    (("draft",), KILL, False),
    (("draft",), STOP, False),
    (("target",), STOP, False),
    (("draft", "target"), KILL, False),
    (("preprocessing",), STOP, False),
    (("card",), KILL, False),
    (("postprocessing", "remote", "ensemble_unary"), KILL, False),
    (("server",), KILL, True),
    (("server",), STOP, True),
]
"""Who is struck, how, and whether the whole server starts again. No stream is open."""


@pytest.mark.parametrize(("victims", "blow", "restarts"), CELLS, ids=str)
def test_the_service_is_ready_again_when_processes_are_killed_or_stopped(
    service: Service, victims: tuple[str, ...], blow: signal.Signals, restarts: bool
) -> None:
    before = service.until(lambda seen: seen["state"] == "ready", "it is ready")
    pids = {service.pid_of(victim) for victim in victims}
    for pid in pids:
        os.kill(pid, blow)
    after = service.until_back_without(pids)
    assert (after["server_pid"] != before["server_pid"]) == restarts
    assert after["server_restarts"] == before["server_restarts"] + restarts
    if not restarts:
        reloaded = {
            model
            for model, health in after["models"].items()
            if health["reloads"] > before["models"][model]["reloads"]
        }
        assert reloaded == set(victims)
    assert not [pid for pid in pids if psutil.pid_exists(pid) and _runs(pid)]
    assert len(service.regions()) == len(STUBS), "the dead left nothing"
    outlast_probation(service)


def outlast_probation(service: Service) -> None:
    """What comes back is struck again no sooner than it counts as brought back."""
    since_s = time.monotonic()
    service.until(lambda _: time.monotonic() - since_s > PROBATION_S + 0.2, "probation is over")


def _runs(pid: int) -> bool:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_the_service_is_degraded_and_not_restarted_when_its_draft_does_not_load(
    service: Service,
) -> None:
    before = service.until(lambda seen: seen["state"] == "ready", "it is ready")
    service.installation.refuse("draft", 3)
    lost = service.pid_of("draft")
    os.kill(lost, KILL)
    service.until(lambda seen: seen["state"] == "degraded", "the draft is missed")
    assert service.ask()[0] == 200
    after = service.until_back_without({lost})
    assert after["server_pid"] == before["server_pid"]
    outlast_probation(service)


@pytest.mark.parametrize("blow", [KILL, STOP], ids=str)
def test_the_service_is_ready_again_when_a_model_is_struck_as_it_loads(
    service: Service, blow: signal.Signals
) -> None:
    """Triton waits for the end of a process that it has given up on."""
    service.until(lambda seen: seen["state"] == "ready", "it is ready")
    held = service.installation.hold("draft")
    lost = service.pid_of("draft")
    os.kill(lost, KILL)
    while not (loading := service.stubs_of("draft") - {lost}):
        time.sleep(0.02)
    held.unlink()
    os.kill(loading.pop(), blow)
    service.until_back_without({lost, *loading})
    assert len(service.regions()) == len(STUBS), "the dead left nothing"
    outlast_probation(service)


def test_the_server_starts_again_when_its_target_does_not_load_twice(service: Service) -> None:
    before = service.until(lambda seen: seen["state"] == "ready", "it is ready")
    service.installation.refuse("target", 2)
    os.kill(service.pid_of("target"), KILL)
    unready = service.until(lambda seen: seen["state"] != "ready", "the target is missed")
    assert not unready["ready"]
    after = service.until_back_without({before["server_pid"]})
    assert after["server_restarts"] == before["server_restarts"] + 1
    events = [event["event"] for event in service.events()]
    assert events.count("server_recovered") == after["server_restarts"]


def test_nothing_is_left_and_no_warning_logged_when_it_is_told_to_stop(service: Service) -> None:
    service.until(lambda seen: seen["state"] == "ready", "it is ready")
    service.process.terminate()
    assert service.process.wait(LONG_S) == 0
    assert service.left() == []
    events = service.events()
    stop = [event["event"] for event in events].index("draining")
    assert [event for event in events[stop:] if event["level"] != "info"] == []
    assert events[-1]["event"] == "stopped"


HANGS = """
import time
from card.serving import supervisor
from card.serving import model_files
model_files.check_model_files = lambda settings: time.sleep(3600)
import typer
typer.run(supervisor.main)
"""


def test_health_answers_and_sigterm_ends_it_when_reading_the_model_files_hangs(
    tmp_path: Path,
) -> None:
    with reserved_serving() as ports:
        file, installation = settings_file(tmp_path, ports)
        with child(sys.executable, "-c", HANGS, f"--settings={file}") as process:
            service = Service(
                tmp_path, file, ports["health_port"], installation, process, tmp_path / "log"
            )
            service.until(lambda seen: seen["state"] == "starting", "it says that it starts")
            assert service.ask("/live")[0] == 200
            assert service.ask("/ready")[0] == 503
            process.terminate()
            assert process.wait(LONG_S) == 0
        assert service.left() == []

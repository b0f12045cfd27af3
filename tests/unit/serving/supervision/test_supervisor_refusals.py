"""What keeps a supervisor from starting is said in one line, before anything is started.

And whoever changes his mind before that finds nothing started, and nothing left.
"""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from child_process import child, next_line
from real_pair import DRAFT, TARGET

from card.serving.supervision.supervised import complaints, reserved_serving

AT_THE_INSTALLATION = """
import os
import typer
from card.serving import supervisor as command
from card.serving.supervision import supervisor

find = supervisor.find_triton

def found_after_a_while(directory):
    print("looking", flush=True)
    os.read(0, 1)
    {ending}
    return find(directory)

supervisor.find_triton = found_after_a_while
typer.run(command.main)
"""
"""A supervisor that has its run directory, and says when it looks for its server."""

UNLOADABLE = """
import typer
from card.serving import supervisor as command
from card.serving.supervision.load_failure import LOAD_ERRORS, announced
from card.serving.supervision.startup import StartError, UnloadableError

class Supervisor:
    def __init__(self, *_):
        pass

    def run(self):
        @announced
        def initialize(model, args):
            raise LOAD_ERRORS[0]("the weights do not fit")

        try:
            initialize(self, {{"model_name": "target"}})
        except LOAD_ERRORS as error:
            raise {kind}(f"target cannot be loaded: {{error}}")

command.Supervisor = Supervisor
typer.run(command.main)
"""
"""A supervisor whose start ends with an error of this kind, after a model has told why."""


def settings_with(folder: Path, ports: Mapping[str, int]) -> Path:
    """A settings file with these ports, a real pair, and shared memory in `folder`/shared."""
    (folder / "shared").mkdir()
    file = folder / "settings.yaml"
    lines = [f"target: {{path: {TARGET}}}", f"draft: {{path: {DRAFT}}}"]
    lines += [f"cache: {{directory: {folder / 'shared'}}}", "serving:"]
    lines += [f"  {name}: {port}" for name, port in ports.items()]
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


@pytest.fixture
def ports() -> Iterator[dict[str, int]]:
    with reserved_serving() as ports:
        yield ports


@pytest.fixture
def settings(tmp_path: Path, ports: dict[str, int]) -> Path:
    return settings_with(tmp_path, ports)


def refused(settings: Path) -> str:
    """The only line that a supervisor with these settings says."""
    command = [sys.executable, "-m", "card.serving.supervisor", f"--settings={settings}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    return line


def test_a_busy_port_as_of_a_second_supervisor(
    tmp_path: Path, ports: dict[str, int], busy_port: int
) -> None:
    settings = settings_with(tmp_path, ports | {"health_port": busy_port})
    assert refused(settings).startswith(f"error: serving.health_port: port {busy_port} is busy: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_who_stops_it_before_its_server_is_found_finds_nothing_left(
    tmp_path: Path, settings: Path, number: signal.Signals
) -> None:
    program = AT_THE_INSTALLATION.format(ending="")
    command = [sys.executable, "-c", program, f"--settings={settings}"]
    with child(*command, stderr=subprocess.PIPE) as supervisor:
        assert next_line(supervisor) == b"looking"
        assert list((tmp_path / "shared").iterdir())
        supervisor.send_signal(number)
        _, said = supervisor.communicate(b"\n", timeout=60)
    assert supervisor.returncode == 0, said.decode()
    assert b"stopped" in said
    assert b"starting" not in said
    assert list((tmp_path / "shared").iterdir()) == []


def test_a_server_that_is_not_found_leaves_nothing(tmp_path: Path, settings: Path) -> None:
    program = AT_THE_INSTALLATION.format(ending="raise command.TritonNotFoundError('nowhere')")
    command = [sys.executable, "-c", program, f"--settings={settings}"]
    ended = subprocess.run(command, input=b"\n", capture_output=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == b"error: nowhere"
    assert list((tmp_path / "shared").iterdir()) == []


@pytest.mark.parametrize(("kind", "events"), [("UnloadableError", 1), ("StartError", 2)])
def test_why_a_model_cannot_be_loaded_is_one_event_and_one_line(
    settings: Path, kind: str, events: int
) -> None:
    """What no model has told stands with the supervisor's own event."""
    command = [sys.executable, "-c", UNLOADABLE.format(kind=kind), f"--settings={settings}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    told = [line for line in ended.stderr.splitlines() if "the weights do not fit" in line]
    (line,) = (line for line in told if line.startswith("error: "))
    assert line == "error: target cannot be loaded: the weights do not fit"
    assert len(told) == 1 + events
    assert "event=gave_up" in ended.stderr.splitlines()[-1]


def test_what_a_log_complains_of_is_found_in_both_formats() -> None:
    complained = [
        "time level=warning component=supervisor event=reloading model=target",
        '{"time": "now", "level": "error", "component": "card", "event": "message"}',
    ]
    lines = ["time level=info event=ready", *complained, '{"level": "info", "event": "answered"}']
    assert complaints(io.BytesIO("\n".join(lines).encode())).splitlines() == complained

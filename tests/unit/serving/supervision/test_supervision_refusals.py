"""What keeps a supervisor from starting is said in one line, before anything is started.

A stop before that leaves nothing started and no file.
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

from loading.supervised import complaints, reserved_serving

AT_THE_INSTALLATION = """
import os
import typer
from card.serving import supervisor as command
from card.serving.supervision import supervisor

find = supervisor.find_triton

def found_after_a_while(directory, named):
    print("looking", flush=True)
    os.read(0, 1)
    {ending}
    return find(directory, named)

supervisor.find_triton = found_after_a_while
typer.run(command.main)
"""
"""A supervisor that has its run directory, and says when it looks for its server."""


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


def test_what_a_log_complains_of_is_found_in_both_formats() -> None:
    complained = [
        "time level=warning component=supervisor event=reloading model=target",
        '{"time": "now", "level": "error", "component": "card", "event": "message"}',
    ]
    lines = ["time level=info event=ready", *complained, '{"level": "info", "event": "answered"}']
    assert complaints(io.BytesIO("\n".join(lines).encode())).splitlines() == complained

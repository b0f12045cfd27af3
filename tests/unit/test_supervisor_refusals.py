"""What keeps a supervisor from starting is said in one line, before anything is started."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest


def refused(settings: Path) -> str:
    """The only line that a supervisor with these settings says."""
    command = [sys.executable, "-m", "card.serving.supervisor", f"--settings={settings}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    return line


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield int(other.getsockname()[1])


@pytest.mark.parametrize("field", ["http_port", "grpc_port", "metrics_port", "health_port"])
def test_a_busy_port_as_of_a_second_supervisor(tmp_path: Path, busy_port: int, field: str) -> None:
    free = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "health_port": 0}
    with ExitStack() as probes:
        for name in free:
            probe = probes.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            free[name] = probe.getsockname()[1]
    settings = tmp_path / "settings.yaml"
    ports = ", ".join(f"{name}: {port}" for name, port in (free | {field: busy_port}).items())
    settings.write_text(f"serving: {{{ports}}}\n", encoding="utf-8")
    assert refused(settings).startswith(f"error: serving.{field}: port {busy_port} is busy: ")


def test_a_settings_file_that_does_not_exist(tmp_path: Path) -> None:
    line = refused(tmp_path / "none.yaml")
    assert line == f"error: settings file {tmp_path / 'none.yaml'} does not exist"

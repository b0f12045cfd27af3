"""`scripts/gpu_check` goes on behind a phase that hangs, and keeps what was found until then."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpu import phases
from gpu.command import app
from gpu.phases import Job
from gpu.report import Check, Found

STARTING_S = 8.0
"""A process that imports torch is there by then, beside others too."""


def finish(job: Job) -> Iterator[Found]:
    yield Check("sums", True, "as expected")


def fail(job: Job) -> Iterator[Found]:
    yield Check("before it failed", True, "")
    raise RuntimeError("the device fell off the bus")


def die(job: Job) -> Iterator[Found]:
    yield Check("before it died", True, "")
    os.kill(os.getpid(), signal.SIGKILL)


def hang_in_a_library(job: Job) -> Iterator[Found]:
    """No exception ends it, for no Python code runs; nor does what it started end by itself."""
    (job.scratch / "half a model").write_bytes(b"0")
    helper = "import faulthandler, signal, time; faulthandler.register(signal.SIGUSR1)\n"
    helper += "def wait_in_the_helper(): print(flush=True); time.sleep(9999)\nwait_in_the_helper()"
    started = subprocess.Popen([sys.executable, "-c", helper], stdout=subprocess.PIPE)
    assert started.stdout is not None
    started.stdout.readline()
    yield Check("before it hung", True, f"{os.getpid()} {started.pid}")
    sleep = ctypes.PyDLL(None).sleep  # holds the interpreter's lock
    while True:
        sleep(9999)


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    for phase in (finish, fail, die, hang_in_a_library):
        monkeypatch.setitem(phases.PHASES, phase.__name__, phase)


def run(tmp_path: Path, only: str, limit_s: float = 120.0) -> tuple[Result, dict[str, Any]]:
    (tmp_path / "scratch").mkdir()
    arguments = ["--device", "cpu", "--only", only, "--limit-s", str(limit_s)]
    arguments += ["--scratch", str(tmp_path / "scratch"), "--results", str(tmp_path / "results")]
    result = CliRunner().invoke(app, arguments)
    assert not list((tmp_path / "scratch").iterdir()), "what a phase wrote lies about"
    return result, only_result(tmp_path)


def only_result(tmp_path: Path) -> dict[str, Any]:
    (file,) = (tmp_path / "results").glob("*.json")
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def states(written: dict[str, Any]) -> dict[str, str]:
    return {phase["name"]: phase["state"] for phase in written["phases"]}


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_phases_run_in_the_order_given_and_say_when_they_begin_and_end(tmp_path: Path) -> None:
    result, written = run(tmp_path, "fail,finish,die")
    assert states(written) == {"fail": "failed", "finish": "finished", "die": "failed"}
    assert [check["name"] for check in written["checks"]] == [
        "before it failed",
        "sums",
        "before it died",
    ]
    assert "the device fell off the bus" in written["phases"][0]["detail"]
    begun = [line for line in result.output.splitlines() if ": begins" in line]
    ended = [line for line in result.output.splitlines() if " after " in line]
    assert [line.split(":")[0] for line in begun] == ["fail", "finish", "die"]
    assert [line.split(":")[0] for line in ended] == ["fail", "finish", "die"]
    assert result.exit_code == 1
    assert "not finished: fail (failed), die (failed)" in result.output.splitlines()[-1]


def test_a_phase_that_hangs_shows_where_and_the_next_one_runs(tmp_path: Path) -> None:
    result, written = run(tmp_path, "hang_in_a_library,finish", limit_s=STARTING_S)
    assert states(written) == {"hang_in_a_library": "over its time", "finish": "finished"}
    first, second = written["checks"]
    assert (first["name"], second["name"]) == ("before it hung", "sums")
    stacks = "\n".join(written["phases"][0]["stacks"])
    assert "in hang_in_a_library" in stacks
    assert "in wait_in_the_helper" in stacks, "of what it started too"
    assert not any(is_running(int(pid)) for pid in first["detail"].split())
    assert result.exit_code == 1


@pytest.mark.parametrize("blow", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_from_outside_keeps_what_it_found(
    tmp_path: Path, blow: signal.Signals
) -> None:
    def end_it() -> None:
        while "before it hung" not in read_result():
            time.sleep(0.05)
        os.kill(os.getpid(), blow)

    def read_result() -> str:
        """Valid at every moment."""
        for file in (tmp_path / "results").glob("*.json"):
            return str(json.loads(file.read_text()))
        return ""

    watcher = threading.Thread(target=end_it, daemon=True)
    # Whoever runs the tests in the background lets them ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        watcher.start()
        result, written = run(tmp_path, "hang_in_a_library,finish")
    finally:
        signal.signal(signal.SIGINT, before)
    assert states(written) == {"hang_in_a_library": "cut off"}
    assert not any(is_running(int(pid)) for pid in written["checks"][0]["detail"].split())
    assert result.exit_code == 1
    assert written["verdict"] == result.output.splitlines()[-1]

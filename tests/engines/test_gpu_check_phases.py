"""`scripts/gpu_check` goes on behind a phase that hangs, and keeps what was found until then."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpu import apart, phases
from gpu.command import app
from gpu.phases import Job
from gpu.report import Check, Found, Report

LIMIT_S = 1800.0
"""No phase here takes so long, however busy the machine."""


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
    (job.scratch / "half a model").mkdir()
    helper = "import faulthandler, signal, time; faulthandler.register(signal.SIGUSR1)\n"
    helper += "def wait_in_the_helper(): print(flush=True); time.sleep(9999)\nwait_in_the_helper()"
    started = subprocess.Popen([sys.executable, "-c", helper], stdout=subprocess.PIPE)
    assert started.stdout is not None
    started.stdout.readline()
    os.mkfifo(job.scratch / "hangs")
    hangs = os.open(job.scratch / "hangs", os.O_RDWR)  # so that no reader is needed
    yield Check("before it hung", True, f"{os.getpid()} {started.pid}")
    os.write(hangs, b"!")
    sleep = ctypes.PyDLL(None).sleep  # holds the interpreter's lock
    while True:
        sleep(9999)


STAND_INS = {phase.__name__: phase for phase in (finish, fail, die, hang_in_a_library)}


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, phase in STAND_INS.items():
        monkeypatch.setitem(phases.PHASES, name, phase)


def arguments(tmp_path: Path, only: str) -> list[str]:
    (tmp_path / "scratch").mkdir()
    folders = ["--scratch", str(tmp_path / "scratch"), "--results", str(tmp_path / "results")]
    return ["--device", "cpu", "--only", only, "--limit-s", str(LIMIT_S), *folders]


def run(tmp_path: Path, only: str) -> tuple[Result, dict[str, Any]]:
    result = CliRunner().invoke(app, arguments(tmp_path, only))
    return result, what_is_left(tmp_path)


def what_is_left(tmp_path: Path) -> dict[str, Any]:
    """The JSON of a run that has ended, and nothing beside it."""
    assert not list((tmp_path / "scratch").iterdir()), "what a phase wrote lies about"
    (file,) = (tmp_path / "results").iterdir()
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def states(written: dict[str, Any]) -> dict[str, str]:
    return {phase["name"]: phase["state"] for phase in written["phases"]}


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_phases_when_some_fail_run_in_order_and_say_when_they_begin_and_end(tmp_path: Path) -> None:
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


def test_phase_when_it_hangs_shows_its_stacks_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late_s[0], sleep=time.sleep)
    monkeypatch.setattr(apart, "time", clock)
    add = Report.add

    def let_its_time_be_over(report: Report, found: Found) -> list[str]:
        for hangs in (tmp_path / "scratch").rglob("hangs"):
            with hangs.open("rb", buffering=0) as told:
                told.read(1)
            hangs.unlink()
            late_s[0] = LIMIT_S
        return add(report, found)

    monkeypatch.setattr(Report, "add", let_its_time_be_over)
    result, written = run(tmp_path, "hang_in_a_library,finish")
    assert states(written) == {"hang_in_a_library": "over its time", "finish": "finished"}
    first, second = written["checks"]
    assert (first["name"], second["name"]) == ("before it hung", "sums")
    stacks = "\n".join(written["phases"][0]["stacks"])
    assert "in hang_in_a_library" in stacks
    assert "in wait_in_the_helper" in stacks, "of what it started too"
    assert not any(is_running(int(pid)) for pid in first["detail"].split())
    assert result.exit_code == 1


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_run_when_ended_by_a_signal_keeps_its_findings(
    tmp_path: Path, sent: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, __file__, *arguments(tmp_path, "hang_in_a_library,finish")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = next(line for line in process.stdout if "before it hung" in line)
        process.send_signal(sent)
        *_, last = process.stdout
    written = what_is_left(tmp_path)
    assert states(written) == {"hang_in_a_library": "cut off", "finish": "not begun"}
    assert not any(is_running(int(pid)) for pid in said.split(":")[1].split())
    assert process.returncode == 1
    assert written["verdict"] == last.rstrip("\n")


if __name__ == "__main__":  # a process of its own, which a signal may end
    signal.signal(signal.SIGINT, signal.default_int_handler)
    phases.PHASES.update(STAND_INS)
    app()

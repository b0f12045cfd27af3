"""The processes of a server: found, judged, tied to their parent, and told to stop."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path
from signal import SIGKILL

import psutil
import pytest
from child_process import child, next_line
from fake_stub import fake_stub

from card.serving.child import bound
from card.serving.supervision.processes import (
    TritonProcess,
    ending,
    find_orphans,
    process_state,
)
from card.serving.supervision.watch import ProcessState


def test_who_only_looks_at_a_region_is_no_orphan() -> None:
    region = f"mine_{secrets.token_hex(8)}_1"
    waiting = "import sys; print(flush=True); sys.stdin.read()"
    with child(sys.executable, "-c", waiting, region) as bystander:
        next_line(bystander)
        assert find_orphans(region) == []


def test_what_another_user_runs_is_no_orphan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = f"mine_{secrets.token_hex(8)}_1"
    with fake_stub(tmp_path, "draft", region):
        monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
        assert find_orphans(region) == []


def test_a_server_takes_every_child_along_whatever_its_command_line_says(tmp_path: Path) -> None:
    """A child that is just being executed has none, and one of them outlived its server so."""
    binary = tmp_path / "tritonserver"
    binary.write_text("#!/bin/sh\nsleep 1000 &\nwait\n")
    binary.chmod(0o700)
    server = TritonProcess([str(binary)], os.environ, "mine_")
    observed = psutil.Process(server.pid)
    while not (children := observed.children()):
        os.sched_yield()
    server.kill()
    assert [process_state(child) for child in children] == [ProcessState.GONE]
    assert ending(server.code) == "killed by SIGKILL"
    server.kill()


RAISED = """
import resource, subprocess, sys
from card.serving import prerequisites
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(prerequisites.raise_limit(800))
inherited = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
sys.stdout.flush()
subprocess.run([sys.executable, "-c", inherited], check=True)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [(64, 500, 500), (64, 1_000, 800), (900, 1_000, 900)],
    ids=["all there are", "no more than are needed", "never fewer"],
)
def test_the_limit_is_raised_for_children_too(soft: int, hard: int, expected: int) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", RAISED.format(soft=soft, hard=hard)],
        capture_output=True,
        text=True,
        check=True,
    )
    raised, inherited = shown.stdout.splitlines()
    assert int(raised) == expected
    assert inherited == f"{expected} {hard}"


def outcome(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)


def test_a_parent_that_died_before_the_tie_was_made_leaves_no_child() -> None:
    command = bound(SIGKILL, ["echo", "started"])
    orphaned = [str(os.getppid()) if word == str(os.getpid()) else word for word in command]
    ending = outcome(orphaned)
    assert (ending.returncode, ending.stdout) == (1, "")


LONG_S = 60.0

INTERRUPTED = """
import faulthandler, sys
from card.serving.supervision.supervisor import StopRequests

faulthandler.dump_traceback_later(30, exit=True)
requests = StopRequests()

def handler(frame, event, argument):
    requests.ask()
    return handler

sys.settrace(handler)  # calls it before every line of Python that is run from here on
for number in range(1, 40):
    requests.ask()
    assert requests.wait_for(number, 60.0)
sys.settrace(None)
print("through", flush=True)
"""


def test_requests_when_a_handler_interrupts_the_wait_go_on() -> None:
    """A handler that runs in the midst of the wait, or of another request."""
    with child(sys.executable, "-c", INTERRUPTED) as interrupted:
        assert next_line(interrupted) == b"through"
        assert interrupted.wait(LONG_S) == 0

"""A tethered child does not outlive its parent, even one that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from signal import SIGKILL

import psutil
from child_process import child, next_line

from card.serving.supervision.policy import ProcessState
from card.serving.supervision.stubs import process_state
from card.serving.supervision.tether import tethered

TIED = "import signal\nprint('tied', flush=True)\nsignal.pause()"
PARENT = f"""
import subprocess, sys
from signal import SIGKILL
from card.serving.supervision.tether import tethered

command = [sys.executable, "-c", {TIED!r}]
child = subprocess.Popen(tethered(SIGKILL, command), stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def outcome(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)


def test_a_tethered_child_dies_with_its_killed_parent() -> None:
    with child(sys.executable, "-c", PARENT) as parent:
        tied = psutil.Process(int(next_line(parent)))
        assert tied.is_running()
        parent.kill()
        parent.wait()
    limit = time.monotonic() + 10
    while process_state(tied) is not ProcessState.GONE:
        assert time.monotonic() < limit, f"{tied} lives on"
        os.sched_yield()


def test_a_parent_that_died_before_the_tie_was_made_leaves_no_child() -> None:
    command = tethered(SIGKILL, ["echo", "started"])
    orphaned = [str(os.getppid()) if word == str(os.getpid()) else word for word in command]
    ending = outcome(orphaned)
    assert (ending.returncode, ending.stdout) == (1, "")


def test_the_child_is_the_command_with_its_words_and_its_environment() -> None:
    said = 'import os, sys; print(os.getppid(), sys.argv, os.environ["GIVEN"])'
    command = tethered(SIGKILL, ["a name", "-c", said, "two words"], sys.executable)
    ending = subprocess.run(
        command, env={"GIVEN": "on"}, capture_output=True, text=True, check=True, timeout=20
    )
    assert ending.stdout == f"{os.getpid()} ['-c', 'two words'] on\n"


def test_the_child_ignores_no_signal_that_the_launcher_ignores() -> None:
    def ignored(command: list[str]) -> str:
        return outcome(command).stdout

    own = ["grep", "SigIgn", "/proc/self/status"]
    assert ignored(tethered(SIGKILL, own)) == ignored(own) != ""


def test_a_program_that_is_not_there_is_one_line() -> None:
    ending = outcome(tethered(SIGKILL, ["/no/such/program"]))
    assert ending.returncode == 127
    assert ending.stderr == "/no/such/program cannot be started: No such file or directory\n"

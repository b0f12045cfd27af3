"""A tethered child does not outlive its parent, even one that is killed."""

from __future__ import annotations

import os
import sys
import time

import psutil
from child_process import child, next_line

from card.serving.supervision.policy import ProcessState
from card.serving.supervision.stubs import process_state

PARENT = """
import subprocess, sys
from signal import SIGKILL
from card.serving.supervision.tether import tethered

child = subprocess.Popen(
    [sys.executable, "-c", "import signal; signal.pause()"], preexec_fn=tethered(SIGKILL)
)
print(child.pid, flush=True)
child.wait()
"""


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

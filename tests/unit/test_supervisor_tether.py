"""A tethered child does not outlive its parent, even one that is killed."""

from __future__ import annotations

import subprocess
import sys

import psutil

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
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.kill()
        parent.wait()
    gone, alive = psutil.wait_procs([child], timeout=10)
    for survivor in alive:
        survivor.kill()
    assert alive == []
    assert gone == [child]

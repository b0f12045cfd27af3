"""Ends an engine's workers when the process that spawned them is gone.

MPI starts them in process groups of their own. If the Triton process is killed they stay, and the
device's memory with them, so that the model could not be loaded again. Therefore a small process
holds the other end of a pipe: when that closes, whatever lives of the workers is killed.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil


class WorkerReaper:
    """Watches over all descendants that this process has now."""

    def __init__(self) -> None:
        workers = psutil.Process().children(recursive=True)
        # Inside Triton's stub sys.executable is not a Python interpreter.
        python = Path(sys.prefix, "bin/python3")
        self._process = subprocess.Popen(
            [python, "-m", __name__, *map(_named, workers)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def close(self) -> None:
        """End what is left of the workers now."""
        self._process.communicate()


def _named(worker: psutil.Process) -> str:
    """A process id and when it began: ids are used again."""
    return f"{worker.pid}:{worker.create_time()}"


def reap(names: list[str]) -> None:
    """Kill the processes of these names that still run."""
    for name in names:
        pid, _, created = name.partition(":")
        with contextlib.suppress(psutil.NoSuchProcess):
            worker = psutil.Process(int(pid))
            if worker.create_time() == float(created):
                worker.kill()


if __name__ == "__main__":
    sys.stdin.read()  # until the Triton process is gone
    reap(sys.argv[1:])

"""An engine's worker processes: one that ends is noticed, none outlives who spawned it.

MPI starts them in process groups of their own. If the Triton process is killed they stay, and the
device's memory with them, so that the model could not be loaded again. Therefore a small process,
the reaper, hears of every worker, and kills those that live when its parent is gone.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from card.processes import started

_LOOK_S = 0.5


class Workers:
    """All descendants of this process; to be made before the first of them is started.

    look_s  between two looks at them
    """

    def __init__(self, look_s: float = _LOOK_S) -> None:
        self._look_s = look_s
        # Inside Triton's stub sys.executable is not a Python interpreter.
        python = Path(sys.prefix, "bin/python3")
        self._reaper = subprocess.Popen(
            [python, "-m", __name__, str(os.getpid())],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._known: dict[int, str] = {}
        self._looked_s = time.monotonic()
        self._is_loaded = threading.Event()
        self._noting = threading.Thread(target=self._note_until_loaded, daemon=True)
        self._noting.start()

    def loaded(self) -> None:
        """All are started."""
        self._is_loaded.set()
        self._noting.join()
        self._note()

    def notice_lost(self) -> bool:
        """Whether one has ended since the last call; does not look too often."""
        now_s = time.monotonic()
        if now_s - self._looked_s < self._look_s:
            return False
        self._looked_s = now_s
        ended = [pid for pid, start in self._known.items() if started(pid) != start]
        for pid in ended:
            del self._known[pid]
        return bool(ended)

    def close(self) -> None:
        """End what is left of them now."""
        self._is_loaded.set()
        self._noting.join()
        self._reaper.communicate()

    def _note_until_loaded(self) -> None:
        while not self._is_loaded.wait(self._look_s):
            self._note()

    def _note(self) -> None:
        """Tell the reaper of those that are new."""
        import psutil  # every process of the service knows this module, and few have workers

        assert self._reaper.stdin is not None
        for process in psutil.Process().children(recursive=True):
            start = started(process.pid)
            if process.pid == self._reaper.pid or start in (None, self._known.get(process.pid)):
                continue
            self._known[process.pid] = start
            self._reaper.stdin.write(f"{process.pid}:{start}\n")
        self._reaper.stdin.flush()


def reap(names: list[str]) -> None:
    """Kill the processes of these names, `pid:start`, that still run."""
    for name in names:
        pid, _, start = name.partition(":")
        if started(int(pid)) == start:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def hear_of_workers(parent: int) -> list[str]:
    """Their names, once the pipe is closed or the parent gone.

    A worker that was forked may hold the pipe open longer than the parent lives.
    """
    heard = b""
    while True:
        is_left = os.getppid() != parent
        can_read = select.select([sys.stdin], [], [], 0.0 if is_left else _LOOK_S)[0]
        piece = os.read(sys.stdin.fileno(), 1 << 16) if can_read else b""
        heard += piece
        if not piece and (can_read or is_left):
            return heard.decode().split()


if __name__ == "__main__":
    reap(hear_of_workers(int(sys.argv[1])))

"""One replica: a server and OpenAI's interface in front of it, as a child process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from card.settings import REPOSITORY_ROOT
from loading.supervised import is_settled, readiness, says_ok, spawned

PORTS = ("http", "grpc", "metrics", "health", "openai")
RESTART_S = 5.0
_TOOLS = REPOSITORY_ROOT / "tools"


class ReplicaEndedError(RuntimeError):
    """A replica has ended by itself; its log says why."""


@dataclass
class ReplicaProcess:
    """The program that made it must `stop` it; it also stops when that program dies.

    ports      of each of `PORTS`
    log        file of its output
    settings   another settings file; None: built in
    variables  added to its environment
    """

    ports: dict[str, int]
    log: Path
    settings: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _started_s: float = 0.0

    @property
    def url(self) -> str:
        """Of OpenAI's interface, without a path."""
        return f"http://127.0.0.1:{self.ports['openai']}"

    @property
    def pid(self) -> int:
        """SIGTERM to it drains the replica."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, from the main thread; also again, behind its end."""
        ports = [f"--{name}-port={port}" for name, port in self.ports.items()]
        settings = [] if self.settings is None else [f"--settings={self.settings}"]
        command = [sys.executable, "-m", "demonstration", "--openai", *ports, *settings]
        with self.log.open("ab") as output:
            variables = {"PYTHONPATH": str(_TOOLS), **self.variables}
            self._process = spawned(command, output, variables)
        self._started_s = time.monotonic()

    def starts_again_if_lost(self) -> bool:
        """Start it if it has ended with an error or was killed; a drained one stays away. Returns
        whether it has; a replica starts at most once in `RESTART_S`."""
        lost = self._process is not None and self._process.poll() not in (None, 0)
        if not lost or time.monotonic() - self._started_s < RESTART_S:
            return False
        self.start()
        return True

    def is_ready(self) -> bool:
        """Whether a request now would be answered. Raises `ReplicaEndedError`."""
        self.check_alive()
        return says_ok(f"{self.url}/health")

    def is_settled(self) -> bool:
        """Whether no model of it prepares anything any more: for measurements."""
        return is_settled(readiness(f"http://127.0.0.1:{self.ports['health']}/ready"))

    def check_alive(self) -> None:
        """Raises `ReplicaEndedError` if it has ended with an error."""
        code = None if self._process is None else self._process.poll()
        if code:
            raise ReplicaEndedError(f"the replica of {self.url} ended with exit code {code}")

    def drain(self) -> None:
        """Take no more requests, let open answers finish, then end; again: cut them off."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> float:
        """End all its processes at once, as the loss of a machine does. Returns when, on the clock
        `time.monotonic`, in seconds."""
        assert self._process is not None
        lost = [psutil.Process(self._process.pid)]
        lost += lost[0].children(recursive=True)
        for process in lost:  # the first dies first, so that it starts nothing again
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        return time.monotonic()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for its end."""
        if self._process is not None:
            self._process.wait(timeout_s)

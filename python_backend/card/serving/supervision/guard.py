"""The guard's process (`gateway/card_guard`): started, listened to, started again.

It stands on the port that clients know and passes their calls on to Triton, which listens on a
socket in the supervisor's own directory. A guard that hangs or ends is replaced: what it holds are
connections, nothing else.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from card.serving.supervision.policy import BLINK_S
from card.serving.supervision.server import ending
from card.serving.supervision.tether import tethered
from card.settings import ServingSettings, without_settings

PROGRAM = "card_guard"
LONGEST_SOCKET = 107
"""Bytes of a socket's path that the kernel takes."""
_PAUSE_S = 1.0
"""Between two starts."""
_MOST_BEATS = 4096


def triton_socket(directory: Path, port: int) -> Path:
    """Where Triton listens for the guard: it puts its port behind the path that it is given."""
    return directory / f"grpc:{port}"


def check_guard(serving: ServingSettings, directory: Path) -> str | None:
    """What keeps the guard from being started with Triton's socket in `directory`, in one line."""
    if importlib.util.find_spec(PROGRAM) is None:
        return (
            f"serving.guard is true, but the package {PROGRAM} is not installed here: install "
            "client/ and gateway/ of the repository, or set serving.guard to false"
        )
    if len(os.fsencode(triton_socket(directory, serving.grpc_port))) > LONGEST_SOCKET:
        return (
            f"serving.guard is true, but cache.directory is too long a path for a socket in it "
            f"({directory}): choose a shorter one, or set serving.guard to false"
        )
    return None


class GuardProcess:
    """The guard of one server, and its successors."""

    def __init__(
        self,
        serving: ServingSettings,
        socket: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start it, from the main thread (see `tethered`)."""
        self._command = [
            *(sys.executable, "-m", PROGRAM),
            f"--triton=unix:{socket}",
            f"--host={serving.address}",
            f"--port={serving.grpc_port}",
            *serving.guard_arguments,
        ]
        self._timeout_s = serving.engine_timeout_s
        self._patience_s = serving.load_timeout_s
        self._clock = clock
        self._looked_s = self._heard_s = clock()
        self._begin()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> str:
        """How the process ended, in words; empty while it runs."""
        code = self._process.poll()
        return "" if code is None else ending(code)

    @property
    def condition(self) -> str:
        """`well`, or in one word what is wrong with it."""
        if self.ended:
            return "gone"
        if not self._listens:
            return "starting"
        return "well" if self._silence_s <= self._timeout_s else "silent"

    def look(self) -> None:
        """Hear whether it still beats."""
        now_s = self._clock()
        if now_s - self._looked_s > BLINK_S:  # nobody ran meanwhile, the guard neither
            self._heard_s = now_s
        self._looked_s = now_s
        with contextlib.suppress(BlockingIOError):
            if os.read(self._beats, _MOST_BEATS):
                self._heard_s, self._listens = now_s, True

    def replace(self) -> str | None:
        """Start another one if this one is lost. Why it was, if so."""
        lost = self._loss()
        if lost is None or self._clock() - self._began_s < _PAUSE_S:
            return None
        self.close()
        self._begin()
        return lost

    def close(self) -> None:
        """Kill it, and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        os.close(self._beats)

    @property
    def _silence_s(self) -> float:
        return self._looked_s - self._heard_s

    def _loss(self) -> str | None:
        if self.ended:
            return f"ended ({self.ended})"
        if self._silence_s > (self._timeout_s if self._listens else self._patience_s):
            return f"silent for {self._silence_s:.1f} s"
        return None

    def _begin(self) -> None:
        self._beats, beaten = os.pipe()
        os.set_blocking(self._beats, False)
        try:
            self._process = subprocess.Popen(
                tethered(signal.SIGKILL, [*self._command, f"--beats={beaten}"]),
                env=without_settings(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                pass_fds=(beaten,),
                start_new_session=True,
            )
        finally:
            os.close(beaten)
        self._began_s = self._looked_s = self._heard_s = self._clock()
        self._listens = False

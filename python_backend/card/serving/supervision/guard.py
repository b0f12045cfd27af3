"""The guard's process (`gateway/card_guard`): started, listened to, started again.

It stands on the port that clients know and passes their calls on to Triton, which listens on a
socket in the supervisor's own directory. A guard that hangs or ends is replaced: what it holds are
connections, nothing else.
"""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from card.serving.supervision.policy import BLINK_S
from card.serving.supervision.server import ending
from card.serving.supervision.starvation import Starvation
from card.serving.supervision.tether import tethered
from card.settings import ServingSettings, Settings, without_settings

PROGRAM = "card_guard"
LONGEST_SOCKET = 107
"""Bytes of a socket's path that the kernel takes."""
_UNFIT_FOR_A_SOCKET = "#?,%"
"""gRPC reads a socket's path as part of a URI."""
START_S = 30.0
"""It listens a second after its start; who has not by then hangs."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""Between two starts, doubled with each that came to nothing."""
_MOST_BEATS = 4096
_BESIDE_THE_PROMPT = 1 << 20
"""Bytes of a request that are not its text, at most."""


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
    if unfit := [character for character in _UNFIT_FOR_A_SOCKET if character in str(directory)]:
        return (
            f"serving.guard is true, but cache.directory ({directory}) contains "
            f"{' and '.join(unfit)}, which no socket's path may: choose another directory, or set "
            "serving.guard to false"
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
        settings: Settings,
        socket: Path,
        clock: Callable[[], float] = time.monotonic,
        starvation: Starvation | None = None,
    ) -> None:
        """Start it, from the main thread (see `tethered`)."""
        serving = settings.serving
        self._command = [
            *(sys.executable, "-m", PROGRAM),
            f"--triton=unix:{socket}",
            f"--host={serving.address}",
            f"--port={serving.grpc_port}",
            f"--message-bytes={2 * settings.limits.prompt_bytes + _BESIDE_THE_PROMPT}",
            *serving.guard_arguments,
        ]
        self._timeout_s = serving.engine_timeout_s
        self._pause_s = _FIRST_PAUSE_S
        self._clock = clock
        self._starvation = starvation or Starvation()
        self._starved_s = 0.0
        self._began_s = self._looked_s = self._heard_s = clock()
        self._listens = False
        self._process, self._beats = _started(self._command)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> str:
        """How the process ended, in words; empty while it runs."""
        code = self._process.poll()
        return "" if code is None else ending(code)

    @property
    def refuses(self) -> bool:
        """Whether it ended by itself, without ever having listened: it would again."""
        return not self._listens and (self._process.poll() or 0) > 0

    @property
    def condition(self) -> str:
        """`well`, or in one word what is wrong with it."""
        if self.ended:
            return "gone"
        if not self._listens:
            return "starting"
        return "well" if self._unexplained_s <= self._timeout_s else "silent"

    def look(self) -> None:
        """Hear whether it still beats."""
        now_s = self._clock()
        if now_s - self._looked_s > BLINK_S:  # nobody ran meanwhile, the guard neither
            self._heard_s = now_s
        self._looked_s = now_s
        if not self._beats.closed and self._beats.read(_MOST_BEATS):
            self._heard_s, self._listens, self._pause_s = now_s, True, _FIRST_PAUSE_S
        self._starved_s = self._starvation.of(self.pid, self._silence_s)

    def replace(self) -> str | None:
        """Start another one if this one is lost. Why it was, if so.

        Raises `OSError` where none can be started; call again later.
        """
        lost = self._loss()
        if lost is None or self._clock() - self._began_s < self._pause_s:
            return None
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._began_s = self._looked_s = self._heard_s = self._clock()
        self._listens = False
        self.close()
        self._process, self._beats = _started(self._command)
        return lost

    def close(self) -> None:
        """Kill it, and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        self._beats.close()

    @property
    def _silence_s(self) -> float:
        return self._looked_s - self._heard_s

    @property
    def _unexplained_s(self) -> float:
        """How much of its silence was no waiting for a processor."""
        return self._silence_s - self._starved_s

    def _loss(self) -> str | None:
        if self.ended:
            return f"ended ({self.ended})"
        if self._unexplained_s > (self._timeout_s if self._listens else START_S):
            return f"silent for {self._silence_s:.1f} s"
        return None


def _started(command: list[str]) -> tuple[subprocess.Popen[bytes], io.FileIO]:
    """A guard, and where its beats are to be read. Raises `OSError`."""
    heard, beaten = os.pipe()
    beats = io.FileIO(heard)
    os.set_blocking(heard, False)
    try:
        process = subprocess.Popen(
            tethered(signal.SIGKILL, [*command, f"--beats={beaten}"]),
            env=without_settings(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            pass_fds=(beaten,),
            start_new_session=True,
        )
    except OSError:
        beats.close()
        raise
    finally:
        os.close(beaten)
    return process, beats

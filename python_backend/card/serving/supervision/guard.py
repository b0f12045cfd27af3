"""Starts and watches the guard's process (`gateway/card_guard`), and replaces it.

The guard listens on the clients' port and forwards their calls to Triton, which listens on a socket
in the supervisor's own directory. The supervisor replaces a guard that hangs or ends; the guard
holds only connections.
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

from card.serving.child import bound
from card.serving.supervision.processes import ending
from card.serving.supervision.watch import BLINK_S, Starvation
from card.settings import ServingSettings, Settings, without_settings

PROGRAM = "card_guard"
LONGEST_SOCKET = 107
"""Bytes of a socket's path that the kernel takes."""
START_S = 30.0
"""A guard that does not listen by then hangs; it usually takes a second."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""Pauses between two starts; each failed start doubles the pause."""
_MOST_BEATS = 4096
_BESIDE_THE_PROMPT = 1 << 20
"""Most bytes of a request beside its text."""


def triton_socket(directory: Path, port: int) -> Path:
    """The socket on which Triton listens for the guard: Triton appends its port to the path."""
    return directory / f"grpc:{port}"


def check_guard(serving: ServingSettings, directory: Path) -> str | None:
    """What keeps the guard from being started with Triton's socket in `directory`, in one line."""
    if importlib.util.find_spec(PROGRAM) is None:
        problem = f"the package {PROGRAM} is missing: install client/ and gateway/"
    elif len(os.fsencode(triton_socket(directory, serving.grpc_port))) > LONGEST_SOCKET:
        problem = f"cache.directory is too long a path for a socket in it ({directory}): shorten it"
    else:
        return None
    return f"serving.guard is true, but {problem}, or set serving.guard to false"


class GuardProcess:
    """The guard of one server, with its replacements."""

    def __init__(
        self,
        settings: Settings,
        socket: Path,
        clock: Callable[[], float] = time.monotonic,
        starvation: Starvation | None = None,
    ) -> None:
        """Start it, from the main thread (see `bound`). Raises `OSError`."""
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
        self._began_s = self._looked_s = self._heard_s = clock()
        self._listens, self._unexplained_s = False, 0.0
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
    def refusal(self) -> str:
        """Why a guard that never listened ended, as its next start would too; else empty."""
        if self._listens or (self._process.poll() or 0) <= 0:
            return ""
        return (
            f"the guard ended during the start ({self.ended}); its own message stands above; "
            "its options are serving.guard_arguments"
        )

    @property
    def condition(self) -> str:
        """`well`, or in one word what is wrong with it."""
        if self.ended:
            return "gone"
        if not self._listens:
            return "starting"
        return "well" if self._unexplained_s <= self._timeout_s else "silent"

    def look(self) -> None:
        """Read the guard's heartbeats."""
        now_s = self._clock()
        if now_s - self._looked_s > BLINK_S:  # the supervisor did not run meanwhile, nor the guard
            self._heard_s = now_s
        self._looked_s = now_s
        if not self._beats.closed and self._beats.read(_MOST_BEATS):
            self._heard_s, self._listens, self._pause_s = now_s, True, _FIRST_PAUSE_S
        silence_s = now_s - self._heard_s
        self._unexplained_s = silence_s - self._starvation.of(self.pid, silence_s)

    def replace(self) -> str | None:
        """Replace a lost guard; returns why it was lost, or None.

        Raises `OSError` if no guard can be started; call again later.
        """
        if self.ended:
            loss = f"ended ({self.ended})"
        elif self._unexplained_s > (self._timeout_s if self._listens else START_S):
            loss = f"silent for {self._looked_s - self._heard_s:.1f} s"
        else:
            return None
        if self._clock() - self._began_s < self._pause_s:
            return None
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._began_s = self._looked_s = self._heard_s = self._clock()
        self._listens, self._unexplained_s = False, 0.0
        self.close()
        self._process, self._beats = _started(self._command)
        return loss

    def close(self) -> None:
        """Kill it, and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        self._beats.close()


def _started(command: list[str]) -> tuple[subprocess.Popen[bytes], io.FileIO]:
    """A guard, and the pipe in which it beats. Raises `OSError`."""
    heard, beaten = os.pipe()
    beats = io.FileIO(heard)
    os.set_blocking(heard, False)
    try:
        process = subprocess.Popen(
            bound(signal.SIGKILL, [*command, f"--beats={beaten}"]),
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

"""The tritonserver process: started, watched, killed with all its stubs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from card.serving.supervision.policy import ProcessState
from card.serving.supervision.residue import make_region_private, regions_of
from card.serving.supervision.stubs import (
    Stub,
    find_session,
    find_stubs,
    has_dead_stub,
    kill,
    process_state,
    stand_in,
)
from card.serving.supervision.tether import tethered

_LAST_THREADS_S = 10.0
"""How long the threads of a process that was killed may take to end."""
_GREETING_S = 10.0
"""How long a process may take to start and to greet Triton."""


def ending(code: int) -> str:
    """How a child with this return code ended, in words."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class TritonProcess:
    """One run of the server.

    It is a session of its own, so that a Ctrl-C at the terminal reaches the supervisor alone, and
    the kernel kills it when the supervisor dies: nothing lives on unwatched.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], region_prefix: str
    ) -> None:
        """Start it, from the main thread (see `tethered`).

        region_prefix  begins the names of its stubs' files in shared memory, as `command` says
        """
        self._stubs: dict[str, Stub] = {}
        self._region_prefix = region_prefix
        self._environment = environment
        self._process = subprocess.Popen(
            tethered(signal.SIGKILL, command),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
        )
        self._observed = psutil.Process(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def state(self) -> ProcessState:
        if self._process.poll() is not None:
            return ProcessState.GONE
        return process_state(self._observed)

    @property
    def crashed(self) -> bool:
        """Whether a signal ended the process."""
        code = self._code
        return code is not None and code < 0

    @property
    def ending(self) -> str:
        """How the process ended, in words; only once it has."""
        code = self._code
        return "still running" if code is None else ending(code)

    @property
    def _code(self) -> int | None:
        """The return code. A process counts as gone once its first thread is, which may be before
        all have ended and it has one: so wait for that."""
        if self.state is ProcessState.GONE:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_THREADS_S)
        return self._process.poll()

    def stub(self, model: str) -> Stub | None:
        """The newest process of `model`, gone or not; None until the first was seen."""
        known = self._stubs.get(model)
        if known is None or known.state is ProcessState.GONE:
            self._stubs |= find_stubs(self.pid)
            for stub in self._stubs.values():
                make_region_private(stub.region)
        return self._stubs.get(model)

    def fail_load(self, model: str) -> None:
        """End a load of `model` whose process died before it greeted Triton.

        Triton waits for that greeting without a limit. Another process greets in the shared memory
        of the dead one, if that is still whole, and Triton takes the load for failed.
        """
        stub, regions = self._stubs.get(model), regions_of(self._region_prefix)
        living = {s.region for s in find_stubs(self.pid).values()}
        ownerless = [region for region in regions if region not in living]
        if stub is None or not ownerless:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                stand_in(stub, ownerless[-1], Path(self._environment["TMPDIR"])),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_GREETING_S,
                check=False,
            )

    def died_unseen(self, models: Iterable[str]) -> list[str]:
        """Those of `models` of which no process was ever seen, if there is a dead one; `stub` is
        what looks for them."""
        unseen = [model for model in models if model not in self._stubs]
        return unseen if unseen and has_dead_stub(self.pid) else []

    def kill(self) -> None:
        """End the server and its stubs, stopped ones too, and wait until all are gone."""
        self._process.kill()
        with contextlib.suppress(ChildProcessError):  # it ended earlier and is reaped already
            # Dead, so that it starts no other stub, but not reaped, so that nobody gets its number.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        kill(find_session(self.pid))
        self._process.wait()

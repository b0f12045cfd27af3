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

from card.serving.child import bound
from card.serving.supervision.processes import (
    MODEL_FILE,
    REGION,
    Stub,
    ending,
    find_session,
    find_stubs,
    has_dead_stub,
    kill,
    process_state,
)
from card.serving.supervision.residue import make_region_private, regions_of
from card.serving.supervision.watch import ProcessState

_LAST_THREADS_S = 10.0
"""How long the threads of a process that was killed may take to end."""
_GREETING_S = 10.0
"""How long a process may take to start and to greet Triton."""


class TritonProcess:
    """One run of the server.

    It is a session of its own, so that a Ctrl-C at the terminal reaches the supervisor alone, and
    the kernel kills it when the supervisor dies: nothing lives on unwatched.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], region_prefix: str
    ) -> None:
        """Start it, from the main thread (see `bound`).

        region_prefix  begins the names of its stubs' files in shared memory, as `command` says
        """
        self._stubs: dict[str, Stub] = {}
        self._region_prefix = region_prefix
        self._environment = environment
        self._process = subprocess.Popen(
            bound(signal.SIGKILL, command),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._observed = psutil.Process(self.pid)

    @property
    def state(self) -> ProcessState:
        if self._process.poll() is not None:
            return ProcessState.GONE
        return process_state(self._observed)

    @property
    def code(self) -> int | None:
        """The return code; None while it runs. A process counts as gone once its first thread is,
        and has a code once all threads have ended: wait for that."""
        if self.state is ProcessState.GONE:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_THREADS_S)
        return self._process.poll()

    @property
    def ending(self) -> str:
        """How the process ended, in words."""
        return "still running" if self.code is None else ending(self.code)

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
        of the dead one, if that is still whole, cannot load its model, and Triton takes the load
        for failed.
        """
        living = {stub.region for stub in find_stubs(self.pid).values()}
        ownerless = [name for name in regions_of(self._region_prefix) if name not in living]
        stub = self._stubs.get(model)
        if stub is None or not ownerless:
            return
        file = Path(self._environment["TMPDIR"], "stand_in/1/model.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('raise RuntimeError("the process of this model died as it was loaded")\n')
        command = list(stub.arguments)
        command[MODEL_FILE], command[REGION] = str(file), ownerless[-1]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command,
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
            # Dead, so that it starts no other stub, but not reaped: its number stays its own.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        kill(find_session(self.pid))
        self._process.wait()

"""The tritonserver process and those of its models: started, found, judged, killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from card.serving.child import bound
from card.serving.supervision.watch import ProcessState

REGIONS = Path("/dev/shm")
"""Where the Python backend puts its shared-memory files, whatever the settings say."""
STUB_PROGRAM = "triton_python_backend_stub"
SERVER_PROGRAM = "tritonserver"
_MODEL_FILE, _REGION = 1, 2
"""Places in a stub's command line `stub .../MODEL/VERSION/model.py REGION ...`."""
_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, ProcessLookupError)
_ARGUMENTS = slice(45, 47)
"""arg_start and arg_end in /proc/PID/stat behind the process's name (proc(5))."""
_LAST_THREADS_S = 10.0
"""How long the threads of a process that was killed may take to end."""
_GREETING_S = 10.0
"""How long a process may take to start and to greet Triton."""


@dataclass(frozen=True, slots=True)
class Stub:
    """One model's process and its command line, program first."""

    model: str
    process: psutil.Process
    arguments: tuple[str, ...]

    @property
    def region(self) -> str:
        """Name of the shared-memory file that it shares with the server."""
        return self.arguments[_REGION]

    @property
    def state(self) -> ProcessState:
        return process_state(self.process)


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
        """The return code; None while one of its threads runs, be it a moment after it is gone."""
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
                # Prompts and texts pass through a file that the library makes readable for all.
                with contextlib.suppress(FileNotFoundError):  # the stub has just ended
                    (REGIONS / stub.region).chmod(0o600)
        return self._stubs.get(model)

    def fail_load(self, model: str) -> None:
        """End a load of `model` after its process died before it greeted Triton.

        Triton waits for that greeting without a limit. Another process greets in the shared memory
        of the dead one, if that is still whole, cannot load its model, and Triton takes the load
        for failed.
        """
        living = {stub.region for stub in find_stubs(self.pid).values()}
        regions = REGIONS.glob(f"{self._region_prefix}*")
        ownerless = [region for region in regions if region.name not in living]
        stub = self._stubs.get(model)
        if stub is None or not ownerless:
            return
        newest = max(ownerless, key=lambda region: region.stat().st_mtime)
        file = Path(self._environment["TMPDIR"], "stand_in/1/model.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('raise RuntimeError("the process of this model died as it was loaded")\n')
        command = list(stub.arguments)
        command[_MODEL_FILE], command[_REGION] = str(file), newest.name
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
        """Those of `models` of which no process was ever seen, if the server has a dead one that it
        has not reaped; `stub` is what looks for them."""
        unseen = [model for model in models if model not in self._stubs]
        return unseen if unseen and any(map(_is_dead_stub, _children(self.pid))) else []

    def kill(self) -> None:
        """End the server and its stubs, stopped ones too, and wait until all are gone."""
        self._process.kill()
        with contextlib.suppress(ChildProcessError):  # it ended earlier and is reaped already
            # Dead, so that it starts no other stub, but not reaped: its number stays its own.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        # A process that is just being executed has no command line, but it has its session.
        kill([process for process in psutil.process_iter() if _session(process) == self.pid])
        self._process.wait()


def find_stubs(server_pid: int) -> dict[str, Stub]:
    """The living stubs of a server, by model."""
    stubs = {}
    for process in _children(server_pid):
        with contextlib.suppress(*_GONE):
            words = tuple(process.cmdline())
            if len(words) > _REGION and Path(words[0]).name == STUB_PROGRAM:
                model = Path(words[_MODEL_FILE]).parents[1].name
                stubs[model] = Stub(model, process, words)
    return stubs


def find_orphans(region_prefix: str) -> list[psutil.Process]:
    """Living stubs and servers of this user that name regions which begin with `region_prefix`."""
    orphans = []
    for process in psutil.process_iter():
        with contextlib.suppress(*_GONE, psutil.AccessDenied):
            program, *arguments = process.cmdline() or [""]
            if (
                Path(program).name in (STUB_PROGRAM, SERVER_PROGRAM)
                and process.uids().real == os.getuid()
                and any(region_prefix in argument for argument in arguments)
            ):
                orphans.append(process)
    return orphans


def kill(processes: Sequence[psutil.Process], timeout_s: float = 10.0) -> None:
    """SIGKILL, which ends stopped processes too, and wait until they are gone.

    Raises `TimeoutError` if one survives, as a process stuck in the kernel does.
    """
    for process in processes:
        with contextlib.suppress(*_GONE):
            process.kill()
    deadline = time.monotonic() + timeout_s
    while not all(map(_has_ended, processes)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"SIGKILL had no effect within {timeout_s:g} s on {processes}")
        time.sleep(0.005)


def process_state(process: psutil.Process) -> ProcessState:
    try:
        status = process.status() if process.is_running() else psutil.STATUS_DEAD
    except _GONE:
        return ProcessState.GONE
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return ProcessState.GONE
    if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
        return ProcessState.STOPPED
    return ProcessState.RUNNING


def ending(code: int | None) -> str:
    """How a child with this return code ended, in words."""
    if code is None:
        return "still running"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def conceal(pid: int, secret: str) -> bool:
    """Overwrite `secret` in the arguments of the child `pid`, which every user of a machine may
    read; whether it stands there no more. False where the kernel forbids it."""
    needle = secret.encode()
    process = Path(f"/proc/{pid}")
    try:
        fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
        start, end = map(int, fields[_ARGUMENTS])
        with (process / "mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            arguments = memory.read(end - start)
            memory.seek(start)
            memory.write(arguments.replace(needle, b"*" * len(needle)))
        return needle not in (process / "cmdline").read_bytes()
    except OSError:
        return False


def _children(pid: int) -> Iterator[psutil.Process]:
    with contextlib.suppress(*_GONE):
        yield from psutil.Process(pid).children()


def _is_dead_stub(process: psutil.Process) -> bool:
    with contextlib.suppress(*_GONE):  # the kernel keeps 15 letters of a dead process's name
        return process.name() == STUB_PROGRAM[:15] and process_state(process) is ProcessState.GONE
    return False


def _session(process: psutil.Process) -> int | None:
    """The process that opened the session of this one; None: it is gone, or not ours to ask."""
    with contextlib.suppress(*_GONE, PermissionError):
        return os.getsid(process.pid)
    return None


def _has_ended(process: psutil.Process) -> bool:
    """Whether all its threads have ended, so that it holds no file and no lock any more: a killed
    stub looks like a zombie as soon as its first thread has ended."""
    if process_state(process) is not ProcessState.GONE:
        return False
    try:
        return len(os.listdir(f"/proc/{process.pid}/task")) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return True

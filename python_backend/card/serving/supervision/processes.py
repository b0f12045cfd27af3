"""The processes that serve the models: found among the server's children, judged and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from card.serving.supervision.watch import ProcessState

STUB_PROGRAM = "triton_python_backend_stub"
SERVER_PROGRAM = "tritonserver"
MODEL_FILE, REGION = 1, 2
"""Places in a stub's command line `stub .../MODEL/VERSION/model.py REGION ...`."""
_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, ProcessLookupError)
_ARGUMENTS = slice(45, 47)
"""arg_start and arg_end in /proc/PID/stat behind the process's name (proc(5))."""


@dataclass(frozen=True, slots=True)
class Stub:
    """One model's process and its command line, program first."""

    model: str
    process: psutil.Process
    arguments: tuple[str, ...]

    @property
    def region(self) -> str:
        """Name of the shared-memory file that it shares with the server."""
        return self.arguments[REGION]

    @property
    def state(self) -> ProcessState:
        return process_state(self.process)


def find_stubs(server_pid: int) -> dict[str, Stub]:
    """The living stubs of a server, by model."""
    stubs = {}
    for process in _children(server_pid):
        with contextlib.suppress(*_GONE):
            words = tuple(process.cmdline())
            if len(words) > REGION and Path(words[0]).name == STUB_PROGRAM:
                model = Path(words[MODEL_FILE]).parents[1].name
                stubs[model] = Stub(model, process, words)
    return stubs


def has_dead_stub(server_pid: int) -> bool:
    """Whether a stub of the server has ended that the server has not reaped."""
    for process in _children(server_pid):
        with contextlib.suppress(*_GONE):  # the kernel keeps 15 letters of a dead process's name
            if process.name() == STUB_PROGRAM[:15] and process_state(process) is ProcessState.GONE:
                return True
    return False


def find_orphans(region_prefix: str) -> list[psutil.Process]:
    """Living stubs and servers of this user that name regions which begin with `region_prefix`."""
    return [process for process in psutil.process_iter() if _uses(process, region_prefix)]


def find_session(leader_pid: int) -> list[psutil.Process]:
    """Living processes of the session that `leader_pid` opened, itself included, also those that
    are just being executed and have no command line."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(*_GONE, PermissionError):
            if os.getsid(process.pid) == leader_pid:
                members.append(process)
    return members


def kill(processes: Iterable[psutil.Process], timeout_s: float = 10.0) -> None:
    """SIGKILL, which ends stopped processes too, and wait until they are gone.

    Raises `TimeoutError` if one survives, as a process stuck in the kernel does.
    """
    processes = list(processes)
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


def ending(code: int) -> str:
    """How a child with this return code ended, in words."""
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
            at = arguments.find(needle)
            while at >= 0:
                memory.seek(start + at)
                memory.write(b"*" * len(needle))
                at = arguments.find(needle, at + len(needle))
        return needle not in (process / "cmdline").read_bytes()
    except OSError:
        return False


def _children(pid: int) -> Iterator[psutil.Process]:
    with contextlib.suppress(*_GONE):
        yield from psutil.Process(pid).children()


def _uses(process: psutil.Process, region_prefix: str) -> bool:
    with contextlib.suppress(*_GONE, psutil.AccessDenied):
        program, *arguments = process.cmdline() or [""]
        return (
            Path(program).name in (STUB_PROGRAM, SERVER_PROGRAM)
            and process.uids().real == os.getuid()
            and any(region_prefix in argument for argument in arguments)
        )
    return False


def _has_ended(process: psutil.Process) -> bool:
    """Whether all its threads have ended, so that it holds no file and no lock any more: a killed
    stub looks like a zombie as soon as its first thread has ended."""
    if process_state(process) is not ProcessState.GONE:
        return False
    try:
        return len(os.listdir(f"/proc/{process.pid}/task")) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return True

"""The processes that serve the models, found among the server's children."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from card.serving.supervision.policy import ProcessState

STUB_PROGRAM = "triton_python_backend_stub"
SERVER_PROGRAM = "tritonserver"
_SHOWN_NAME = STUB_PROGRAM[:15]
"""All that the kernel keeps of it once the process is dead."""
_MODEL_FILE, _REGION = 1, 2
"""Places in a stub's command line."""
_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, ProcessLookupError)


@dataclass(frozen=True, slots=True)
class Stub:
    """One model's process.

    arguments  its command line, program first
    """

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


def find_stubs(server_pid: int) -> dict[str, Stub]:
    """The living stubs of a server, by model."""
    stubs = (_as_stub(child) for child in _children(server_pid))
    return {stub.model: stub for stub in stubs if stub is not None}


def has_dead_stub(server_pid: int) -> bool:
    """Whether a stub of the server has ended that the server has not reaped."""
    return any(map(_is_dead_stub, _children(server_pid)))


def find_orphans(region_prefix: str) -> list[psutil.Process]:
    """Living stubs and servers of this user whose regions begin with `region_prefix`.

    Whoever else names a region, as somebody who looks at it, is none.
    """
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


def stand_in(stub: Stub, region: str, folder: Path) -> list[str]:
    """The command of a process that greets the server in `region`, as a stub like `stub` does, and
    then cannot load its model, which it finds in `folder`."""
    file = folder / "stand_in/1/model.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('raise RuntimeError("the process of this model died while it was loaded")\n')
    command = list(stub.arguments)
    command[_MODEL_FILE], command[_REGION] = str(file), region
    return command


def find_session(leader_pid: int) -> list[psutil.Process]:
    """Living processes of the session that `leader_pid` opened, itself included.

    Nothing hides from it: a process that is just being executed has no command line for a while.
    """
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
        try:
            process.kill()
        except _GONE:
            continue
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


def _children(server_pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(server_pid).children())
    except _GONE:
        return []


def _is_dead_stub(process: psutil.Process) -> bool:
    try:
        return process_state(process) is ProcessState.GONE and process.name() == _SHOWN_NAME
    except _GONE:
        return False


def _has_ended(process: psutil.Process) -> bool:
    """Whether all its threads have ended, so that it holds no file and no lock any more.

    A killed stub stays a zombie until the server reaps it, and looks like one as soon as its first
    thread has ended.
    """
    if process_state(process) is not ProcessState.GONE:
        return False
    try:
        return len(os.listdir(f"/proc/{process.pid}/task")) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def _as_stub(process: psutil.Process) -> Stub | None:
    """Read the command line `stub …/<model>/<version>/model.py <region> …`; None for others."""
    try:
        arguments = process.cmdline()
    except _GONE:
        return None
    if len(arguments) <= _REGION or Path(arguments[0]).name != STUB_PROGRAM:
        return None
    return Stub(Path(arguments[_MODEL_FILE]).parents[1].name, process, tuple(arguments))

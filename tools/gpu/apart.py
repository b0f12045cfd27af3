"""One phase in a process of its own, which is ended when its time is over.

A call that hangs inside a library cannot be interrupted from within its process.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TypeVar

from gpu.report import Found, PhaseRecord

Job = TypeVar("Job")

_DUMPING_S = 0.5
"""A process that has said nothing more for so long has said where its threads are: two at a time
would mix their lines."""

_ASKING_S = 3.0
"""How long a process has to begin with that."""

_ENDING_S = 5.0
"""How long a process has to end after its last result."""

_PR_SET_PDEATHSIG = 1


class _Failed(str):
    """Why a phase did not finish, as its process says it."""


def run_apart(
    phase: Callable[[Job], Iterator[Found]],
    job: Job,
    record: PhaseRecord,
    on_found: Callable[[Found], None],
) -> None:
    """Run the phase for at most `record.limit_s` seconds, and record how it went.

    on_found  is given each result at once
    """
    context = multiprocessing.get_context("spawn")
    results, results_in = context.Pipe(duplex=False)
    errors, errors_in = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(phase, job, results_in, errors_in))
    started = time.monotonic()
    process.start()
    results_in.close()
    errors_in.close()
    said = _Said(errors)
    try:
        _follow(results, started + record.limit_s, record, on_found)
        if record.state == "over its time":
            record.stacks = _stacks_of(process, said)
    except BaseException:
        record.state = "cut off"
        raise
    finally:
        _end(process, patiently=record.state == "finished")
        said.close()
        results.close()
        record.seconds = time.monotonic() - started


def _follow(
    results: Connection, deadline: float, record: PhaseRecord, on_found: Callable[[Found], None]
) -> None:
    """Hand on results until the phase ends, or its time."""
    while results.poll(max(0.0, deadline - time.monotonic())):
        try:
            found = results.recv()
        except EOFError:
            record.state, record.detail = "failed", "its process died; see standard error"
            return
        if found is None:
            record.state = "finished"
            return
        if isinstance(found, _Failed):
            record.state, record.detail = "failed", str(found)
            return
        on_found(found)
    record.state, record.detail = "over its time", f"not done after {record.limit_s:g} s"


def _stacks_of(process: SpawnProcess, said: _Said) -> list[str]:
    """Where all threads are, of the phase's process and of those that it started."""
    before = len(said.lines)
    for pid in _group_of(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
            said.listen()
    return said.lines[before:]


def _group_of(process: SpawnProcess) -> list[int]:
    """The process, which leads a group, and all that it started, oldest first."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(ValueError, ProcessLookupError):
            pid = int(entry.name)
            if os.getpgid(pid) == process.pid:
                found.append(pid)
    return sorted(found)


def _end(process: SpawnProcess, *, patiently: bool) -> None:
    """End the process and all that it started."""
    assert process.pid is not None
    if patiently:
        process.join(_ENDING_S)
    with contextlib.suppress(ProcessLookupError):  # gone, or not yet the leader of its group
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


class _Said:
    """What the processes of a phase write to standard error: passed on, and kept in lines."""

    def __init__(self, source: Connection) -> None:
        self.lines: list[str] = []
        self._source = source
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def listen(self) -> None:
        """Return when something was said, and nothing more since."""
        known, began_s = len(self.lines), time.monotonic()
        while len(self.lines) == known and time.monotonic() - began_s < _ASKING_S:
            time.sleep(_DUMPING_S)
        while len(self.lines) > known:
            known = len(self.lines)
            time.sleep(_DUMPING_S)

    def close(self) -> None:
        """To be called when all processes of the phase have ended."""
        self._thread.join(_ENDING_S)

    def _pass_on(self) -> None:
        with open(self._source.fileno(), errors="replace", closefd=False) as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))
                sys.stderr.write(line)
                sys.stderr.flush()
        self._source.close()


def _run(
    phase: Callable[[Job], Iterator[Found]], job: Job, results: Connection, errors: Connection
) -> None:
    """What the phase's process does."""
    os.setsid()
    # A run that is killed leaves no model on the device.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(errors.fileno(), sys.stderr.fileno())
    errors.close()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("card").setLevel(logging.INFO)
    try:
        for found in phase(job):
            results.send(found)
        results.send(None)
    except Exception as error:
        traceback.print_exc()
        results.send(_Failed(f"{type(error).__name__}: {error}"))

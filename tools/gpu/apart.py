"""One phase in a process of its own, which is ended when its time is over.

A call that hangs inside a library cannot be interrupted from within its process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TypeVar

import psutil

from card.serving.child import signal_on_parent_exit
from gpu.report import Found, PhaseRecord

Job = TypeVar("Job")

_ANSWER_S = 2.0
"""How long a process has to say where its threads are."""
_ENDING_S = 5.0
"""How long a process has to end after its last result."""


class _Failed(str):
    """Why a phase did not finish, as its process says it."""


def run_apart(
    phase: Callable[[Job], Iterator[Found]],
    job: Job,
    record: PhaseRecord,
    on_found: Callable[[Found], None],
    said: Path,
) -> None:
    """Run the phase for at most `record.limit_s` seconds, and record how it went.

    on_found  is given each result at once
    said      file that holds what its processes write to standard error; printed at the end
    """
    context = multiprocessing.get_context("spawn")
    results, results_in = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(phase, job, results_in, said))
    said.touch()  # the phase may be over its time before its process begins
    started = time.monotonic()
    process.start()
    results_in.close()
    try:
        _follow(results, started + record.limit_s, record, on_found)
        if record.state == "over its time":
            record.stacks = _stacks_of(process, said)
    except BaseException:
        record.state = "cut off"
        raise
    finally:
        _end(process, patiently=record.state == "finished")
        results.close()
        if said.exists():
            sys.stderr.write(said.read_text(errors="replace"))
            sys.stderr.flush()
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


def _stacks_of(process: SpawnProcess, said: Path) -> list[str]:
    """Where all threads are, of the phase's process and of those that it started. One process is
    asked after the other, or their lines would mix."""
    before = said.stat().st_size
    first = psutil.Process(process.pid)
    for one in (first, *first.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGUSR1)
        time.sleep(_ANSWER_S)
    return said.read_bytes()[before:].decode(errors="replace").splitlines()


def _end(process: SpawnProcess, *, patiently: bool) -> None:
    """End the process and all that it started."""
    assert process.pid is not None
    if patiently:
        process.join(_ENDING_S)
    with contextlib.suppress(ProcessLookupError):  # gone, or not yet the leader of its group
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _run(
    phase: Callable[[Job], Iterator[Found]], job: Job, results: Connection, said: Path
) -> None:
    """Run the phase, in its process."""
    os.setsid()
    # A run that is killed leaves no model on the device.
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    signal_on_parent_exit(signal.SIGKILL, parent.pid)
    with said.open("ab") as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())
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

"""NVIDIA's Multi-Process Service (MPS): kernels of several processes run at once on one device.

Without it processes take turns. A CUDA program joins the daemon that its environment names when it
first uses a device, and runs as ever where there is none.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

_PROGRAM = "nvidia-cuda-mps-control"
_ANSWER_S = 30.0


class SharingError(RuntimeError):
    """The daemon does not run here; the text says why."""


class SharedDevice:
    """A daemon of our own, which serves the programs that this process starts."""

    def __init__(self, program: str) -> None:
        self._program = program

    def has_served(self) -> bool:
        """Whether a program joined. Raises `SharingError`."""
        return bool(self._ask("get_server_list").strip())

    def quit(self) -> None:
        """Programs that run are ended with it. Raises `SharingError`."""
        self._ask("quit -t 1")

    def _ask(self, command: str) -> str:
        try:
            return subprocess.run(
                [self._program],
                input=f"{command}\n",
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=True,
                timeout=_ANSWER_S,
            ).stdout
        except (subprocess.SubprocessError, OSError) as error:
            raise SharingError(f"{_PROGRAM} did not answer {command!r}: {error}") from error


@contextmanager
def shared_device(folder: Path) -> Iterator[SharedDevice]:
    """Programs that this process starts meanwhile share their device. Raises `SharingError`.

    folder  for the daemon's sockets and logs; a short path, for a socket's has 107 characters
    """
    program = shutil.which(_PROGRAM)
    if program is None:
        raise SharingError(f"{_PROGRAM} is not installed; it comes with NVIDIA's driver")
    variables = {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder),
        "CUDA_MPS_LOG_DIRECTORY": str(folder),
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        _start(program, folder)
        device = SharedDevice(program)
        try:
            yield device
        finally:
            try:
                device.quit()
            except SharingError as error:
                log.warning("%s; the daemon of %s may still run", error, folder)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _start(program: str, folder: Path) -> None:
    said = folder / "start.log"
    # Not a pipe: the daemon would hold it open.
    with said.open("w") as output:
        started = subprocess.run([program, "-d"], stdout=output, stderr=output, timeout=_ANSWER_S)
    if started.returncode:
        why = said.read_text(errors="replace").strip() or f"exit code {started.returncode}"
        raise SharingError(f"{_PROGRAM} -d does not start: {why}")

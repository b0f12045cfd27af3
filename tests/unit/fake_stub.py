"""A process that looks to the supervisor like a Python backend's stub."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from card.serving.supervision.stubs import STUB_PROGRAM, Stub, find_stubs

_WAIT = "import sys\nsys.stdout.write('up\\n')\nsys.stdout.flush()\nsys.stdin.read()\n"


@contextmanager
def fake_stub(repository: Path, model: str, region: str = "region") -> Iterator[Stub]:
    """A child of this process that serves `model`, found as the supervisor finds it."""
    script = repository / model / "1" / "model.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_WAIT)
    with subprocess.Popen(
        [STUB_PROGRAM, str(script), region],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield find_stubs(os.getpid())[model]
        finally:
            process.kill()


def status_of(stub: Stub) -> str:
    """What the kernel says."""
    return str(psutil.Process(stub.process.pid).status())

"""A process that looks to the supervisor like a Python backend's stub."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from child_process import child, next_line

from card.serving.supervision.processes import STUB_PROGRAM, Stub, find_stubs

_WAIT = "import sys\nsys.stdout.write('up\\n')\nsys.stdout.flush()\nsys.stdin.read()\n"


@contextmanager
def fake_stub(repository: Path, model: str, region: str = "region") -> Iterator[Stub]:
    """A child of this process that serves `model`, found as the supervisor finds it."""
    script = repository / model / "1" / "model.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_WAIT)
    program = repository / STUB_PROGRAM
    if not program.exists():
        program.symlink_to(sys.executable)
    with child(str(program), str(script), region) as process:
        assert next_line(process) == b"up"
        yield find_stubs(os.getpid())[model]

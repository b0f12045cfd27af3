"""The process that compiles and renders chat templates.

A chat template is a program that comes with a model. In a process of its own it has bounds on
processor time, memory and output, and a template that breaks one costs that process alone.
"""

from __future__ import annotations

import atexit
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_CHILD = Path(__file__).with_name("child.py")
_START = (
    "import runpy, sys; sys.path += sys.argv[5:]; runpy.run_path(sys.argv[1], run_name='__main__')"
)
"""An interpreter without site packages starts sooner; the library's folders are named to it."""


@dataclass(frozen=True)
class Bounds:
    """What a template may use.

    cpu_s              seconds of processor time of one rendering; a model's own template takes
                       about a thousandth
    memory_bytes       addresses of the process
    output_characters  of one rendering
    """

    cpu_s: float = 2.0
    memory_bytes: int = 512 << 20
    output_characters: int = 4 << 20


class TemplateProcess:
    """Starts the process with the first call, and again after a template ended it.

    Calls from several threads take turns.
    """

    def __init__(self, bounds: Bounds = Bounds()) -> None:
        self._bounds = bounds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        atexit.register(self.close)

    def ask(self, source: str, variables: Mapping[str, Any] | None) -> dict[str, Any]:
        """One answer, as `child` describes it. Raises OSError if no process can be started, and
        `ModuleNotFoundError` if Jinja is not installed."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._close()
            if self._process is None:
                self._process = self._started()
            try:
                return self._answer(self._process, source, variables)
            except EOFError:
                code = self._process.wait()
                self._close()
        if code == -signal.SIGPROF:
            return {"exceeded": f"it computes for more than {self._bounds.cpu_s:g} s"}
        return {"exceeded": f"it ends the process that renders it (exit code {code})"}

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._close()

    def _started(self) -> subprocess.Popen[str]:
        interpreter = Path(sys.prefix, "bin/python3")  # Triton's stub is no Python interpreter
        bounds = map(str, astuple(self._bounds))
        return subprocess.Popen(
            [interpreter, "-I", "-S", "-c", _START, _CHILD, *bounds, *_library_folders()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="ascii",
        )

    @staticmethod
    def _answer(
        process: subprocess.Popen[str], source: str, variables: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        line = json.dumps({"source": source, "variables": variables})
        try:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            raise EOFError from None
        if not answer.endswith("\n"):
            raise EOFError
        found: dict[str, Any] = json.loads(answer)
        return found

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(BrokenPipeError):  # what was not sent is of no use
                    pipe.close()


def _library_folders() -> list[str]:
    """Where Jinja and what it imports are installed. Raises `ModuleNotFoundError`."""
    found = [find_spec(name) for name in ("jinja2", "markupsafe")]
    folders = [Path(it.origin).parent.parent for it in found if it is not None and it.origin]
    if len(folders) < len(found):
        raise ModuleNotFoundError("jinja2 is not installed, so no chat template can be used")
    return list(dict.fromkeys(map(str, folders)))

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
from pathlib import Path
from typing import Any

CPU_S = 2.0
"""Seconds of processor time of one rendering; a model's own template takes about a thousandth."""
MEMORY_BYTES = 512 << 20
"""Addresses of the process."""
OUTPUT_CHARACTERS = 4 << 20
"""Of one rendering."""

_CHILD = Path(__file__).with_name("template_child.py")


class TemplateProcess:
    """Starts the process with the first call, and again after a template ended it.

    Calls from several threads take turns.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        atexit.register(self.close)

    def ask(self, source: str, variables: Mapping[str, Any] | None) -> dict[str, Any]:
        """One answer, as `template_child` describes it."""
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
            return {"exceeded": f"it computes for more than {CPU_S:g} s"}
        return {"exceeded": f"it ends the process that renders it (exit code {code})"}

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._close()

    @staticmethod
    def _started() -> subprocess.Popen[str]:
        bounds = map(str, (CPU_S, MEMORY_BYTES, OUTPUT_CHARACTERS))
        return subprocess.Popen(
            [sys.executable, "-I", str(_CHILD), *bounds],
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


TEMPLATES = TemplateProcess()
"""The process that all templates of this program share."""

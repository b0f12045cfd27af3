"""Runs inside each of the server's processes and notes which functions of the project are called.

The standard library alone is imported: the tracer must not bring modules of the project along.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

_LOOK_S = 0.02


class Tracer:
    """Notes calls in the threads that start after it, and in the one that makes it.

    A folder tells what to note: while it holds a file `idle` or `request`, every function of
    `packages` that is called counts for that phase. `PROCESS.json` receives what was seen.
    """

    def __init__(self, folder: Path, process: str, packages: list[str]) -> None:
        self._folder = folder
        self._process = process
        self._packages = tuple(packages)
        self._seen: dict[str, set[tuple[str, str]]] = {"idle": set(), "request": set()}
        self._phase: str | None = None
        threading.Thread(target=self._follow_folder, name="tracer", daemon=True).start()
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._phase is None or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(self._packages):
            name = getattr(code, "co_qualname", code.co_name)
            self._seen[self._phase].add((code.co_filename, name))

    def _follow_folder(self) -> None:
        sys.setprofile(None)
        while True:
            found = next((one for one in self._seen if (self._folder / one).exists()), None)
            if self._phase is not None and found is None:
                self._write()
            self._phase = found
            time.sleep(_LOOK_S)

    def _write(self) -> None:
        file = self._folder / f"{self._process}.json"
        told = {phase: sorted(calls) for phase, calls in self._seen.items()}
        file.with_suffix(".part").write_text(json.dumps(told))
        os.replace(file.with_suffix(".part"), file)

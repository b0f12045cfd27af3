"""The OpenVINO engine: a checkpoint as one compiled graph on the processor.

By default every import of OpenVINO forks a process that reports to Google Analytics. In a model's
process such a child inherits the lock of loading models, and Triton's signal handler keeps it from
being terminated. Behind a network that drops packets no other model could then load. So the package
that reports is hidden first.

While OpenVINO's own oneTBB may use only one thread, its idle threads keep other cores busy looking
for work; version 2022.0 repaired that. So the oneTBB of the package `tbb` is loaded next, which
libraries that are loaded later then use. Where it is not installed, or not whole, OpenVINO takes
its own, and `graph.thread_limit` says so.
"""

import contextlib
import ctypes
import importlib.metadata
import sys

SONAME = "libtbb.so.12"

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
with contextlib.suppress(importlib.metadata.PackageNotFoundError, OSError):
    for _file in importlib.metadata.files("tbb") or ():
        if _file.name == SONAME:
            ctypes.CDLL(str(_file.locate()))

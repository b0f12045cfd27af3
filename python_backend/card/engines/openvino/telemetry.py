"""OpenVINO reports nothing to anybody.

Left to itself every import of it is told to Google Analytics, by a process forked for that. In a
model's process such a child holds all that its parent holds, the lock of models that load among it,
and Triton's handler keeps it from being terminated: where the network swallows packets no other
model would ever be loaded.
"""

from __future__ import annotations

import sys

_REPORTER = "openvino_telemetry"


def refuse_telemetry() -> None:
    """What is imported of OpenVINO from now on finds no package that reports."""
    sys.modules.setdefault(_REPORTER, None)  # type: ignore[arg-type]

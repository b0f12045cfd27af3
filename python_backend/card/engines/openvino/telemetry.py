"""Turns OpenVINO's telemetry off.

By default every import of OpenVINO forks a process that reports to Google Analytics. In a model's
process such a child inherits the lock of loading models, and Triton's signal handler keeps it from
being terminated. Behind a network that drops packets no other model could then load.
"""

from __future__ import annotations

import sys

_REPORTER = "openvino_telemetry"


def refuse_telemetry() -> None:
    """Hide the telemetry package from later imports of OpenVINO."""
    sys.modules.setdefault(_REPORTER, None)  # type: ignore[arg-type]

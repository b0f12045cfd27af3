"""OpenVINO reports its use to no host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_IMPORTS = """
import psutil
import card.engines.openvino.engine
import openvino
from openvino.tools.ovc import telemetry

telemetry.send_event("ov", "import", "general_import")
assert not psutil.Process().children(), "a process was forked to report"
"""


def test_nothing_is_reported_and_nothing_kept_to_report_by(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS],
        env={**environment, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir()), "by what it keeps here its reporter knows a user again"

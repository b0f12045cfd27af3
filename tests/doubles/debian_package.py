"""Programs and libraries of Debian that tests need, without installing them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from card.settings import REPOSITORY_ROOT


def unpacked(package: str) -> Path:
    """The folder where its files lie as they would under /."""
    found = subprocess.run(
        [REPOSITORY_ROOT / "scripts/fetch_debian_package", package],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return Path(found.stdout.strip())


def prometheus_programs() -> Path:
    """The folder of `prometheus` and `promtool`: what is on PATH, else Debian's."""
    installed = shutil.which("prometheus")
    if installed and Path(installed).with_name("promtool").exists():
        return Path(installed).parent
    return unpacked("prometheus") / "usr/bin"

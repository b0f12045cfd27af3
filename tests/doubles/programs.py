"""Programs that read the deployment's files and are no Python packages."""

from __future__ import annotations

import os
import shutil

import pytest

REQUIRED_VARIABLE = "CARD_REQUIRE_PROGRAMS"
"""Set (`.ci/run` does) it turns a missing program from a skipped test into a failed one."""


def program(name: str, package: str) -> str:
    """Where it is. Without it the test is skipped, or fails if all programs must be there."""
    found = shutil.which(name)
    if found is None:
        reason = f"{name} is missing: run 'apt-get install {package}'"
        if os.environ.get(REQUIRED_VARIABLE):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return found

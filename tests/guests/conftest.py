"""Programs of other projects, each in its own environment. `scripts/test --guests` runs these.

Where this machine cannot have an environment (no network, no wheel, no room, no time), the tests of
the files that need it are skipped, with that reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "serving")]
collect_ignore_glob = [] if os.environ.get("CARD_GUESTS") else ["*"]

INSTALL_S = 720
_CANNOT, _TOO_LATE = 2, 124


@pytest.fixture(scope="module", autouse=True)
def environment(request: pytest.FixtureRequest) -> None:
    """Install what the tests of a file need."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        lacks = _lacks(request.path.name.removeprefix("test_").removesuffix(".py").split("_")[0])
    if lacks:
        pytest.skip(lacks)


@cache
def _lacks(program: str) -> str | None:
    """Why the environment of vllm, router or kserve cannot be had."""
    if program != "vllm":
        return _lacks_python_packages(program)
    command = ["timeout", str(INSTALL_S), ROOT / "scripts/setup", "--vllm"]
    said = ""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as setup:
        for said in setup.stderr or ():
            sys.stderr.write(said)
    if setup.returncode == _TOO_LATE:
        return f"vLLM was not installed within {INSTALL_S} s"
    if setup.returncode == _CANNOT:
        return said.removeprefix("setup: ").strip()
    assert setup.returncode == 0, "scripts/setup --vllm failed"
    return None


def _lacks_python_packages(program: str) -> str | None:
    from environments import EnvironmentFailedError, installed

    if program == "kserve" and sys.version_info < (3, 11):
        return "the pinned kserve needs CPython 3.11"
    home, requirements = ROOT / f".venv-{program}", [ROOT / f"requirements/{program}.txt"]
    try:
        if program == "kserve":
            installed(home, requirements)
        else:
            installed(home, bare=requirements)
    except EnvironmentFailedError as error:
        return str(error)
    return None

"""Environments of their own for programs of other projects, made when they are missing or their
requirements have changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

QUIETLY = {**os.environ, "CI": "true"}
"""The environment of such programs: OpenVINO sends no telemetry where CI is set."""
_LAST_LINES = 3
_LIMIT_S = 800.0


class EnvironmentFailedError(RuntimeError):
    """The environment cannot be made, or a program in it ended with an error; the message holds
    what it said last."""


def installed(home: Path, whole: Sequence[Path] = (), bare: Sequence[Path] = ()) -> Path:
    """The interpreter of `home`, an environment with these requirements. Those of `bare` files are
    installed without their dependencies. Raises `EnvironmentFailedError`."""
    python, stamp = home / "bin" / "python", home / "installed"
    files = (*whole, *bare)
    wanted = sys.version + "".join(file.read_text(encoding="utf-8") for file in files)
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"Installing {', '.join(f.name for f in files)} into {home.name}.", file=sys.stderr)
    run([sys.executable, "-m", "venv", "--clear", str(home)])
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-input", "--only-binary=:all:"]
    for some, options in ((whole, []), (bare, ["--no-deps"])):
        if some:
            run([*install, *options, *(f"--requirement={file}" for file in some)])
    stamp.write_text(wanted, encoding="utf-8")
    return python


def run(command: Sequence[str]) -> None:
    """Raises `EnvironmentFailedError`."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=QUIETLY, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        what = " ".join(command)
        raise EnvironmentFailedError(f"not done within {_LIMIT_S:g} s: {what}") from None
    if done.returncode:
        raise EnvironmentFailedError(last_lines(done.stderr or done.stdout))


def last_lines(said: str) -> str:
    """The end of what a program said, in one line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return " ".join(lines[-_LAST_LINES:]) or "no reason given"

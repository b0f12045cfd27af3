"""The router's environment, `.venv-router`: made when it is missing or its requirements changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from card.settings import REPOSITORY_ROOT

HOME = REPOSITORY_ROOT / ".venv-router"
_REQUIREMENTS = REPOSITORY_ROOT / "requirements" / "router.txt"
_LAST_CHARACTERS = 2000


class EnvironmentFailedError(RuntimeError):
    """The router cannot be installed; the message says what pip said."""


def router_program(home: Path = HOME) -> Path:
    """The router's program, installed first where needed. Raises `EnvironmentFailedError`."""
    program, stamp = home / "bin" / "smg", home / "installed"
    wanted = sys.version + _REQUIREMENTS.read_text(encoding="utf-8")
    if program.is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return program
    print(f"Installing the router into {home.name}.", file=sys.stderr)
    _run([sys.executable, "-m", "venv", "--clear", str(home)])
    install = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
    _run([*install, "--only-binary=:all:", "--no-deps", "--requirement", str(_REQUIREMENTS)])
    stamp.write_text(wanted, encoding="utf-8")
    return program


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise EnvironmentFailedError(
            f"the router cannot be installed: {done.stdout[-_LAST_CHARACTERS:].strip()}"
        )

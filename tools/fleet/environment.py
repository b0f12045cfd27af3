"""Environments of their own, made when they are missing or their requirements have changed: the
router's is `.venv-router`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from card.settings import REPOSITORY_ROOT

HOME = REPOSITORY_ROOT / ".venv-router"
_REQUIREMENTS = REPOSITORY_ROOT / "requirements" / "router.txt"
_LAST_CHARACTERS = 2000
_INSTALL_S = 600.0


class EnvironmentFailedError(RuntimeError):
    """The environment cannot be made; the message says what pip said."""


def router_program() -> Path:
    """The router's program, installed first where needed. Raises `EnvironmentFailedError`."""
    return installed(HOME, _REQUIREMENTS) / "bin" / "smg"


def installed(home: Path, requirements: Path, *, bare: bool = True) -> Path:
    """`home`, an environment with these requirements; `bare`: the file names all that is needed.
    Raises `EnvironmentFailedError`."""
    stamp = home / "installed"
    wanted = sys.version + requirements.read_text(encoding="utf-8")
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return home
    print(f"Installing {requirements.name} into {home.name}.", file=sys.stderr)
    _run([sys.executable, "-m", "venv", "--clear", str(home)])
    install = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
    options = ["--only-binary=:all:", *(["--no-deps"] if bare else [])]
    _run([*install, *options, "--requirement", str(requirements)])
    stamp.write_text(wanted, encoding="utf-8")
    return home


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=_INSTALL_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise EnvironmentFailedError(f"not within {_INSTALL_S:g} s: {command}") from None
    if done.returncode:
        raise EnvironmentFailedError(
            f"the environment cannot be made: {done.stdout[-_LAST_CHARACTERS:].strip()}"
        )

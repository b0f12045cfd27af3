"""What a dead supervisor, server or stub leaves behind, and its removal.

A supervisor owns one run directory beside the cache pools and locks it while it lives. The name of
the directory carries the token with which the Python backend's shared-memory files begin, so a
directory without a lock tells which files and processes belong to it.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from card.cache.pool import is_private, sweep_pools
from card.serving.supervision.processes import REGIONS, find_orphans, kill

_TOKEN_BYTES = 8
_PREFIX = f"card_run_{os.getuid()}_"


class RunDirectory:
    """This supervisor's directory: the server's temporary files and staged backend lie in it."""

    def __init__(self, parent: Path) -> None:
        """Create and lock it under `parent`. Raises `OSError` where that is impossible."""
        token = secrets.token_hex(_TOKEN_BYTES)
        self.path = run_directory(parent, token)
        self.region_prefix = _region_prefix(token)
        """Begins the name of every shared-memory file of this supervisor's stubs."""
        self.settings = self.path / "settings.yaml"
        """The settings of this service, for all its models."""
        unlocked = self.path.with_name(f".{self.path.name}")
        unlocked.mkdir(mode=0o700)
        self._descriptor = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlocked.rename(self.path)

    @property
    def calibration_cache(self) -> Path:
        """Where engines keep what they measured at load: this user's cache, if it is private (XDG
        Base Directory Specification), else the run directory."""
        try:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            directory = base / "card-triton"
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = directory.stat()
        except (OSError, RuntimeError):  # a home that is missing, or cannot be written
            return self.path / "calibration"
        others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        is_ours = status.st_uid == os.getuid() and os.access(directory, os.W_OK)
        return directory if is_ours and not others_write else self.path / "calibration"

    def stage_models(self, repository: Path, additions: Mapping[str, str]) -> Path:
        """Where the server finds the models of `repository`. Triton's Python backend hands their
        paths to a shell as they are, and the folder of a checkout may have any name.

        additions  text behind the configuration, by model
        """
        staged = self.fresh("models")
        for model in repository.resolve().iterdir() if repository.is_dir() else ():
            if not additions.get(model.name):
                (staged / model.name).symlink_to(model)
                continue
            (staged / model.name).mkdir()
            for part in model.iterdir():
                (staged / model.name / part.name).symlink_to(part)
            config = staged / model.name / "config.pbtxt"
            text = config.read_text(encoding="utf-8")
            config.unlink()
            config.write_text(f"{text}\n{additions[model.name]}", encoding="utf-8")
        return staged

    def fresh(self, name: str) -> Path:
        """An empty directory of this name for a server that is about to start."""
        directory = self.path / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        return directory

    def sweep_regions(self) -> None:
        """Remove every shared-memory file of this supervisor's stubs; none may be alive."""
        _remove_regions(self.region_prefix)

    def close(self) -> None:
        """Remove everything."""
        self.sweep_regions()
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def run_directory(parent: Path, token: str = "0" * 2 * _TOKEN_BYTES) -> Path:
    """That of the supervisor with this token; all paths are equally long."""
    return parent / f"{_PREFIX}{token}"


def sweep(directory: Path) -> list[Path]:
    """Remove what dead supervisors left: processes, shared-memory files, directories, pools.

    Returns the directories removed.
    """
    removed = []
    for path in directory.glob(f"{_PREFIX}*"):
        token = path.name.removeprefix(_PREFIX)
        # A name that no supervisor gives is left alone: the token becomes part of a pattern.
        if re.fullmatch(f"[0-9a-f]{{{2 * _TOKEN_BYTES}}}", token) is None:
            continue
        if not is_private(path) or _is_locked(path):
            continue
        kill(find_orphans(_region_prefix(token)))
        _remove_regions(_region_prefix(token))
        shutil.rmtree(path, ignore_errors=True)
        removed.append(path)
    return [*removed, *sweep_pools(directory)]


def _region_prefix(token: str) -> str:
    return f"card_stub_{os.getuid()}_{token}_"


def _remove_regions(region_prefix: str) -> None:
    for region in REGIONS.glob(f"{region_prefix}*"):
        region.unlink(missing_ok=True)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return True  # its owner is just removing it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False

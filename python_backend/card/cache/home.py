"""The directories of pools: one for each server, which only this user may enter."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path

_PREFIX = "card-"


def home_of(directory: Path, server_pid: int) -> Path:
    """The directory of the pool of the server with this process id."""
    return directory / f"{_PREFIX}{os.getuid()}-{server_pid}"


def is_private(directory: Path) -> bool:
    """Whether this is a directory (no link) that this user owns and no other user may enter. In a
    folder such as /dev/shm, where every user may write, another user may have made it."""
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return False
    others = stat.S_IRWXG | stat.S_IRWXO
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.getuid()
        and not stat.S_IMODE(found.st_mode) & others
    )


def check_named(path: Path, descriptor: int) -> None:
    """Close the locked file and raise `FileNotFoundError` if a sweep came before the lock."""
    if os.fstat(descriptor).st_nlink == 0:
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "swept while it was made", str(path))


def sweep_pools(directory: Path) -> list[Path]:
    """Remove this user's pools that no process locks; returns the removed directories."""
    removed = []
    for home in filter(is_private, directory.glob(f"{_PREFIX}{os.getuid()}-*")):
        for path in home.glob("*pool-*"):
            _remove_unlocked(path)
        with contextlib.suppress(OSError):  # not empty: in use; gone: another process swept it
            home.rmdir()
            removed.append(home)
    return removed


def _remove_unlocked(path: Path) -> None:
    """Remove a pool's file unless its owner lives."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return
    finally:
        os.close(descriptor)

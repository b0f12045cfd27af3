"""Where this user's services keep what the next start need not find out again."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def user_cache() -> Path | None:
    """A directory of this user's that nobody else may write to (XDG Base Directory Specification);
    None: there is no such place."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        directory = base / "card-triton"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except (OSError, RuntimeError):  # a home that is missing, or cannot be written
        return None
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_ours = status.st_uid == os.getuid() and not others and os.access(directory, os.W_OK)
    return directory if is_ours else None

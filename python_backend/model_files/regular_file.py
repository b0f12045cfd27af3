"""Files that may be read: one that is there and is a named pipe would be waited for."""

from __future__ import annotations

from pathlib import Path


def is_irregular(file: Path) -> bool:
    """Whether something is there that is no regular file. What cannot be looked at is not: reading
    it says why."""
    try:
        return file.exists() and not file.is_file()
    except OSError:
        return False

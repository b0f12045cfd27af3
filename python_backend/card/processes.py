"""When another process started, as the kernel says."""

from __future__ import annotations

from pathlib import Path

_STATE, _STARTED = 3, 22
"""Places in /proc/PID/stat, counted from 1 as proc(5) does."""


def started(pid: int) -> str | None:
    """When a process began, in ticks since the machine did, which no clock that is set changes.

    With it a process has a name that is never used again, as its id is. None: it has ended; a
    zombie has.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The process's name, in parentheses, may hold anything.
    fields = status.rpartition(")")[2].split()
    ended = fields[0] in ("Z", "X")
    return None if ended else fields[_STARTED - _STATE]

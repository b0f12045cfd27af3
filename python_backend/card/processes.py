"""The start time of a process, from the kernel."""

from __future__ import annotations

from pathlib import Path

_STATE, _STARTED = 3, 22
"""Places in /proc/PID/stat, counted from 1 as proc(5) does."""


def started(pid: int) -> str | None:
    """Start time of a process in ticks since boot, independent of the wall clock.

    Process id and start time together are unique; ids alone are reused. None: the process, or
    zombie, has ended.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The process's name, in parentheses, may hold anything.
    fields = status.rpartition(")")[2].split()
    ended = fields[0] in ("Z", "X")
    return None if ended else fields[_STARTED - _STATE]

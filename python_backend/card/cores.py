"""The number of usable cores."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this process may keep busy: those it may run on, or a container's quota if that is
    less.

    quota  of the control group, "MICROSECONDS PERIOD" or "max PERIOD"
    """
    cores = len(os.sched_getaffinity(0))
    try:
        paid, period = quota.read_text(encoding="ascii").split()
        return max(1, min(cores, math.ceil(int(paid) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # no such control group, or no limit
        return cores

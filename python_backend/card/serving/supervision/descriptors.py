"""How many files and connections the processes of a service may have open.

Where Triton has no descriptor to spare, it takes no connection of anybody, the supervisor's own
neither, and writes a hundred thousand lines a second about it. Shells start processes with room for
1,024, which so many silent connections fill; the kernel lets whoever is started so ask for more.
"""

from __future__ import annotations

import resource
import sys

MOST = 65_536
"""Of one process. Connections take memory too."""
FEW = 4_096


def raise_limit(most: int = MOST) -> int:
    """Let this process, and those that it starts, open up to `most` files, as far as that is
    allowed; returns how many it may open now."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in limits)
    wanted = min(most, hard)
    if soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limits[1]))
    return wanted

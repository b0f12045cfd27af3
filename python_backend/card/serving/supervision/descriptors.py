"""How many files and connections the processes of a service may have open.

Where Triton has no descriptor to spare, it takes no connection of anybody, the supervisor's own
neither, and writes a hundred thousand lines a second about it. Shells start processes with room for
1,024, which so many silent connections fill; the kernel lets whoever is started so ask for more.
"""

from __future__ import annotations

import resource

MOST = 65_536
"""Of one process. Connections take memory too."""
FEW = 4_096


def raise_limit() -> int:
    """Let this process, and those that it starts, open up to `MOST` files, as far as that is
    allowed; returns how many it may open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(MOST, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted

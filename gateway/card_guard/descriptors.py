"""How many files and connections a program in front of Triton may have open."""

from __future__ import annotations

import resource

MOST = 65_536
"""Shells allow 1,024. So many silent connections would leave none for a refusal."""


def allow_descriptors(most: int = MOST) -> None:
    """Ask for room for so many, as far as the kernel lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

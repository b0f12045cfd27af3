"""How many files and connections a program in front of Triton may have open."""

from __future__ import annotations

import resource

MOST = 65_536
"""Shells leave room for 1,024, which so many silent connections fill, and then nobody would get so
much as a refusal."""


def allow_descriptors(most: int = MOST) -> None:
    """Ask for room for so many, as far as the kernel lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

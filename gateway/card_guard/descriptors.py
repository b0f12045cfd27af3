"""Raises the limit of open files and connections of a program in front of Triton."""

from __future__ import annotations

import resource

MOST = 65_536
"""Wanted limit. Shells allow 1,024, which silent connections could use up."""


def allow_descriptors(most: int = MOST) -> None:
    """Raise the limit to `most`, as far as the kernel allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

"""Reports the progress of a training stage."""

from __future__ import annotations

from collections.abc import Callable

Show = Callable[[float | None, str], None]
"""Takes the share that is done (None: unknown) and a remark."""


def silent(share: float | None, remark: str) -> None:
    """Report nothing."""

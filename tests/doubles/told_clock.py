"""A clock that a test sets."""

from __future__ import annotations


class ToldClock:
    """Answers `now_s`, in seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

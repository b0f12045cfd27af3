"""Session numbers of an engine and how long their confirmed prefixes are."""

from __future__ import annotations

from card.engines.interface import EngineError


class Sessions:
    """Session numbers, lowest first, so that a pass covers few idle lanes."""

    def __init__(self, count: int) -> None:
        self.length = [0] * count
        self._taken = [False] * count

    def open(self, length: int) -> int:
        for session, taken in enumerate(self._taken):
            if not taken:
                self._taken[session] = True
                self.length[session] = length
                return session
        raise EngineError(f"all {len(self._taken)} sessions of the engine are taken")

    def close(self, session: int) -> None:
        self._taken[session] = False

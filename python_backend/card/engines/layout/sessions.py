"""Session numbers of an engine and how long their confirmed prefixes are."""

from __future__ import annotations

from collections.abc import Sequence

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


class OneLaneEach:
    """The sessions of a layout that gives each of them the lane of its number."""

    def __init__(self, sessions: int) -> None:
        self._sessions = Sessions(sessions)

    def open(self, length: int = 0) -> int:
        return self._sessions.open(length)

    def close(self, session: int) -> None:
        self._sessions.close(session)

    def length(self, session: int) -> int:
        return self._sessions.length[session]

    def lanes(self, session: int) -> range:
        return range(session, session + 1)


def check_pending(parents: Sequence[int] | None, known: int, more: int, most: int) -> None:
    """Whether `more` rows may become entries behind `known` ones, of which there may be `most`.
    Raises what says why not."""
    if known + more > most:
        raise EngineError(f"{known + more} pending entries; a session holds {most}")
    if parents is None and known:
        raise ValueError("a chain continues the prefix only when nothing is pending")

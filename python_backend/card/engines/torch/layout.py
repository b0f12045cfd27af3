"""Where rows stand: how the rows of sessions become one pass over KV lanes.

`chains.ChainLayout` (target) puts every root-to-leaf path of a tree into a lane of its own, at its
absolute positions. `trees.TreeLayout` (draft) keeps a growing tree behind the prefix and masks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from card.engines.interface import EngineError, Rows
from card.engines.torch.decoder import Pass

HIDDEN = float("-inf")
"""Mask value of a place that a row must not see."""


class Layout(Protocol):
    """Sessions of one engine and the places of their rows."""

    def open(self) -> int: ...

    def close(self, session: int) -> None: ...

    def length(self, session: int) -> int: ...

    def plan(self, batch: Sequence[Rows]) -> Pass: ...

    def keep(self, session: int, confirmed: Sequence[int], surviving: Sequence[int]) -> None: ...


def rounded_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class Sessions:
    """Session numbers, lowest first, so that a pass covers few idle lanes."""

    def __init__(self, count: int) -> None:
        self.length = [0] * count
        self._taken = [False] * count

    def open(self) -> int:
        for session, taken in enumerate(self._taken):
            if not taken:
                self._taken[session] = True
                self.length[session] = 0
                return session
        raise EngineError(f"all {len(self._taken)} sessions of the engine are taken")

    def close(self, session: int) -> None:
        self._taken[session] = False

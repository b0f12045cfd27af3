"""The common part of layouts: sessions with a prefix each, and the interface of a KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from card.engines.interface import EngineError, SequenceTokens

EXTENT_MULTIPLE = 128
"""The number of places of a KV cache's lane is a multiple of this."""

SHORT = 16
"""A session with at most this many rows shares a pass with other sessions."""


class KeyValueBuffers(Protocol):
    """Keys and values of every lane. Session `n` has lane `n`; lanes of kept texts follow."""

    def copy(self, source: int, start: int, stop: int, lane: int, to: int) -> None:
        """Copy places [start, stop) of lane `source` to `lane`, from place `to` on."""


class KeyValueStore(KeyValueBuffers, Protocol):
    """Lanes with entries that can be moved."""

    def gather(self, lane: int, start: int, sources: NDArray[np.int64]) -> None:
        """Move the entries at `start + sources` of a lane to `start`, `start + 1`, ..."""


class Layout(Protocol):
    """Sessions of one engine and the places of their rows.

    Each layout also has `plan(batch)`, which gives the rows of a batch places and returns its own
    type of pass: `paths.PathPass` or `pages.PagedPass`.
    """

    def open(self, length: int = 0) -> int:
        """Open a session with a prefix of `length` places, which the caller fills."""

    def close(self, session: int) -> None: ...

    def length(self, session: int) -> int:
        """Positions of the confirmed prefix."""

    def commit_kv(
        self, session: int, confirmed: Sequence[int], surviving: Sequence[int]
    ) -> None: ...


class Sessions:
    """Session numbers, lowest first, and the lengths of confirmed prefixes."""

    def __init__(self, count: int) -> None:
        self.lengths = [0] * count
        self._taken = [False] * count

    def open(self, length: int = 0) -> int:
        for session, taken in enumerate(self._taken):
            if not taken:
                self._taken[session] = True
                self.lengths[session] = length
                return session
        raise EngineError(f"all {len(self._taken)} sessions of the engine are taken")

    def close(self, session: int) -> None:
        self._taken[session] = False

    def length(self, session: int) -> int:
        return self.lengths[session]


def check_pending(parents: Sequence[int] | None, known: int, more: int, most: int) -> None:
    """Raises unless `more` rows may become pending entries behind `known` ones; a session has room
    for `most`."""
    if known + more > most:
        raise EngineError(f"{known + more} pending entries; a session holds {most}")
    if parents is None and known:
        raise ValueError("a chain continues the prefix only when nothing is pending")


def rounded_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def wanted_logit_rows(batch: Sequence[SequenceTokens]) -> NDArray[np.int64]:
    """[n], the rows of a pass that need logits: the last ones of each session."""
    wanted: list[int] = []
    end = 0
    for rows in batch:
        end += len(rows.tokens)
        wanted.extend(range(end - rows.wanted, end))
    return np.array(wanted, np.int64)

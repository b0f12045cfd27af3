"""Results of engines as arrays: whole rows of logits, or the likeliest ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from card.engines.interface import SequenceTokens


def wanted_rows(batch: Sequence[SequenceTokens]) -> Iterator[tuple[SequenceTokens, slice]]:
    """The rows of each session, and the slice of its logits among all wanted logits."""
    at = 0
    for rows in batch:
        yield rows, slice(at, at + rows.wanted)
        at += rows.wanted


def own_rows(batch: Sequence[SequenceTokens]) -> Iterator[slice]:
    """Of each session, the slice of its rows among all rows."""
    at = 0
    for rows in batch:
        yield slice(at, at + len(rows.tokens))
        at += len(rows.tokens)


class ArrayLogits:
    """Logits of one session's rows, [rows, vocabulary] float32."""

    def __init__(
        self, values: NDArray[np.float32], states: NDArray[np.uint16] | None = None
    ) -> None:
        self._values = values
        self.states = states

    def row(self, index: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self._values[index]
        return row

    def best(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        raise TypeError(
            "only an engine with sessions of growing trees ranks (SequenceTokens.ranking)"
        )


class RankedIds:
    """The likeliest ids of one session's rows, [rows, best], and their log-probabilities."""

    states = None

    def __init__(self, ids: NDArray[np.int64], log_probabilities: NDArray[np.float32]) -> None:
        self._ids = ids
        self._log_probabilities = log_probabilities

    def row(self, index: int) -> NDArray[np.float32]:
        raise TypeError("these rows have only their likeliest ids (SequenceTokens.ranking)")

    def best(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return self._ids, self._log_probabilities

"""A draft with a slightly different vocabulary: it reads and proposes ids that both models have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from card.engines.interface import (
    Engine,
    EngineError,
    Logits,
    Ranking,
    SequenceTokens,
    forward_one_by_one,
)
from card.engines.vocabulary import SharedVocabulary

_NEVER = np.float32(-1e30)
"""Log-probability of an id that is not proposed: its probability is 0, and the number is finite."""


class SharedIds:
    """Implements `card.engines.interface.Engine` with the ids of the target.

    The draft reads an id that it lacks as another id. Its candidates behind that id are worse, but
    the text never changes.
    """

    def __init__(self, engine: Engine, shared: SharedVocabulary) -> None:
        self._engine = engine
        self.context, self.most_rows = engine.context, engine.most_rows
        self.row_invariant = engine.row_invariant
        self.row_costs_ms, self.alone_share = engine.row_costs_ms, engine.alone_share
        self.open_session, self.close_session = engine.open_session, engine.close_session
        self.remember, self.length = engine.remember, engine.length
        self.commit_kv = engine.commit_kv
        self._vocabulary = shared.target_size
        self._own = shared.draft_size
        self._proposed = shared.proposed
        shown = np.flatnonzero(self._proposed)
        if not len(shown):
            raise EngineError("draft and target must share a vocabulary: they have no id in common")
        self._other = int(shown[0])

    @property
    def vocabulary(self) -> int:
        return self._vocabulary

    @property
    def ranked_ids(self) -> NDArray[np.int64]:
        """The draft's ranked ids; an id that only the draft has is replaced by another one."""
        return np.minimum(self._engine.ranked_ids, self._vocabulary - 1)

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        found = self._engine.forward([self._read(rows) for rows in batch], alone=alone)
        return [
            _SharedLogits(logits, self._proposed, self._other, self._vocabulary) for logits in found
        ]

    @property
    def runs_ahead(self) -> bool:
        return False

    def forward_chain(
        self, rows: SequenceTokens, rankings: Sequence[Ranking], entry: int
    ) -> list[Logits]:
        return forward_one_by_one(self, rows, rankings, entry)

    def _read(self, rows: SequenceTokens) -> SequenceTokens:
        """The rows with ids of the draft."""
        known = [token if token < self._own else self._other for token in rows.tokens]
        return replace(rows, tokens=known)


class _SharedLogits:
    """Logits of one session's rows, with the ids of the target."""

    def __init__(
        self, logits: Logits, proposed: NDArray[np.bool_], other: int, vocabulary: int
    ) -> None:
        """`other` is an id that the draft may propose."""
        self.states = None
        self._logits = logits
        self._proposed = proposed
        self._other = other
        self._vocabulary = vocabulary

    def row(self, index: int) -> NDArray[np.float32]:
        own = np.where(self._proposed, self._logits.row(index), -np.inf).astype(np.float32)
        return _of_length(own, self._vocabulary, -np.inf)

    def best(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        ids, values = self._logits.best()
        proposed = self._proposed[ids]
        # Ids that are not proposed move to the end of their row, replaced by `other`.
        order = np.argsort(~proposed, axis=1, kind="stable")
        ids = np.where(proposed, ids, self._other)
        values = np.where(proposed, values, _NEVER)
        return np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1)


def _of_length(row: NDArray[np.float32], length: int, filler: float) -> NDArray[np.float32]:
    if len(row) >= length:
        return row[:length]
    return np.concatenate([row, np.full(length - len(row), filler, np.float32)])

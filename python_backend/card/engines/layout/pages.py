"""One lane per session and every row by itself: it looks at the places of its lane up to its own.

For attention that needs no mask, of passes whose rows are chains.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from card.engines.interface import SequenceTokens
from card.engines.layout.plan import Pass, Scattered, Stretch, last_rows, rounded_up
from card.engines.layout.sessions import OneLaneEach


class PageLayout(OneLaneEach):
    """Implements `plan.Layout` with passes that attend nothing together.

    row_multiple  passes have a multiple of so many rows, for kernels that differ below it
    """

    def __init__(self, sessions: int, row_multiple: int) -> None:
        super().__init__(sessions)
        self._multiple = row_multiple

    def plan(self, batch: Sequence[SequenceTokens]) -> Pass:
        if any(rows.parents is not None for rows in batch):
            raise ValueError("a layout of pages has no branches")
        if len(batch) == 1 and self._multiple == 1:
            return self._plan_one(batch[0])
        return self._plan_many(batch)

    def _plan_one(self, rows: SequenceTokens) -> Pass:
        """The same as `_plan_many` says."""
        count, start = len(rows.tokens), self._sessions.length[rows.session]
        return Pass(
            tokens=np.array(rows.tokens, np.int64),
            positions=np.arange(start, start + count),
            destination=Stretch(rows.session, start),
            groups=[],
            scatter=None,
            logit_rows=last_rows([count], [rows]),
        )

    def _plan_many(self, batch: Sequence[SequenceTokens]) -> Pass:
        counts = [len(rows.tokens) for rows in batch]
        starts = [self._sessions.length[rows.session] for rows in batch]
        tokens = np.array([token for rows in batch for token in rows.tokens], np.int64)
        lane = np.repeat([rows.session for rows in batch], counts)
        place = np.concatenate(
            [np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
        )
        tokens, lane, place = (self._padded(values) for values in (tokens, lane, place))
        logit_rows = last_rows(counts, batch)
        if logit_rows is None and len(tokens) > sum(counts):
            logit_rows = np.arange(sum(counts))
        return Pass(tokens, place, Scattered(lane, place), [], None, logit_rows)

    def _padded(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """With the last row once more: it stores what it stores anyway."""
        missing = rounded_up(len(values), self._multiple) - len(values)
        return np.concatenate([values, values[-1:].repeat(missing)]) if missing else values

    def commit_kv(self, session: int, confirmed: Sequence[int], surviving: Sequence[int]) -> None:
        """Confirm the first rows of the last pass; nothing else survives."""
        if surviving:
            raise ValueError("a layout of pages keeps no pending entries")
        if list(confirmed) != list(range(len(confirmed))):
            raise ValueError("rows of one chain are confirmed in order, from the first on")
        self._sessions.length[session] += len(confirmed)

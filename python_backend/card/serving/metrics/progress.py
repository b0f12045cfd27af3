"""Reads the increase of the engines' counters in the pool, per decoding mode.

It reads the counters as arrays of all slots, without locks. If a slot's session id changes
meanwhile, the slot is left for the next read. `card` also reads at each session's end, before the
slot is reused, so no count is lost between two reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib import recfunctions
from numpy.typing import NDArray

from card.cache import DRAFT_COUNTERS, MAX_ROWS, TARGET_COUNTERS, Pool, choice_words
from card.speculation.pacing import PACINGS, counted_as

_MOST = 1 << 52
"""Most of one counter: 52 days in nanoseconds. The sum over all slots cannot overflow."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Increase of the counters of all sessions of one decoding mode.

    counters         name in the pool -> increase (times in nanoseconds)
    tokens_per_step  [MAX_ROWS + 1] int64, steps by their number of committed tokens
    accepted_at      [MAX_ROWS] int64, accepted candidates by their place behind the text
    """

    counters: dict[str, int]
    tokens_per_step: NDArray[np.int64]
    accepted_at: NDArray[np.int64]

    @property
    def committed(self) -> int:
        """Tokens."""
        return int((self.tokens_per_step * np.arange(len(self.tokens_per_step))).sum())


class ProgressReader:
    """Remembers the last counters of each slot. One thread at a time uses it."""

    def __init__(self, pool: Pool) -> None:
        """Begins at the present counters: sessions of an earlier `card` are not counted."""
        self._pool = pool
        self._target = _Counters([*TARGET_COUNTERS], pool)
        self._draft = _Counters([*DRAFT_COUNTERS], pool)
        self.read()

    def read(self) -> dict[str, Progress]:
        """The increase since the last call, for modes with an increase."""
        records = self._pool.slots
        session_ids = records["session_id"].copy()
        pacings = records["pacing"].copy()
        adopted = records["commit_session_id"] == session_ids
        half = records["flip"] & 1
        followed = records["tree_session_id"][np.arange(len(half)), half] == session_ids
        histograms = records["tokens_per_step"].copy(), records["accepted_at"].copy()
        target = np.concatenate([self._target.values(), *histograms], axis=1)
        draft = self._draft.values()
        same = records["session_id"] == session_ids
        target = self._target.increase(target, session_ids, adopted & same)
        draft = self._draft.increase(draft, session_ids, followed & same)
        return {
            name: self._progress(target[rows].sum(axis=0), draft[rows].sum(axis=0))
            for name in dict.fromkeys(map(counted_as, PACINGS))
            if (target[rows := are_counted_as(name, pacings)].any()) or draft[rows].any()
        }

    def _progress(self, target: NDArray[np.int64], draft: NDArray[np.int64]) -> Progress:
        counted = len(TARGET_COUNTERS)
        counters = dict(zip(TARGET_COUNTERS, target[:counted].tolist(), strict=True))
        counters |= zip(DRAFT_COUNTERS, draft.tolist(), strict=True)
        steps_end = counted + MAX_ROWS + 1
        return Progress(counters, target[counted:steps_end], target[steps_end:])


def are_counted_as(mode: str, pacings: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[slots] bool, whether the pacing in each slot counts as this decoding mode."""
    words = np.array([choice_words(name) for name in PACINGS if counted_as(name) == mode])
    found: NDArray[np.bool_] = (pacings[:, None] == words).all(axis=2).any(axis=1)
    return found


class _Counters:
    """The counters of one engine: the last values of each slot, and their session ids."""

    def __init__(self, names: list[str], pool: Pool) -> None:
        self._records = pool.slots[names]  # a view
        self._seen: NDArray[np.int64] | None = None
        self._session_ids = np.zeros(len(pool.slots), np.int64)

    def values(self) -> NDArray[np.int64]:
        """[slots, counters] int64, now."""
        values: NDArray[np.int64] = recfunctions.structured_to_unstructured(
            self._records, copy=True
        )
        return values

    def increase(
        self, values: NDArray[np.int64], session_ids: NDArray[np.int64], valid: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """[slots, counters] int64 since the last call; 0 for slots that are not `valid`.

        A counter that decreased was reset by a reloaded engine. The draft may have written garbage:
        impossible counts are cut off, so that no sum overflows (Triton's stub dies if a counter
        decreases).
        """
        values = values.clip(0, _MOST)
        if self._seen is None:
            self._seen = np.zeros_like(values)
        known = (session_ids == self._session_ids)[:, None] & (values >= self._seen)
        gained = np.where(known, values - self._seen, values)
        self._seen[valid] = values[valid]
        self._session_ids[valid] = session_ids[valid]
        return np.where(valid[:, None], gained, 0)

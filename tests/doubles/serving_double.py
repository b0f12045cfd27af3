"""A pool and a target that a test plays by hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from card.cache import Finish, Geometry, Pool, SlotRequest
from card.sampling import SamplingParameters

GEOMETRY = Geometry(
    slots=2, nodes=64, prompt=16, output=128, bad_words=4, bad_word_tokens=16, queue=4
)


def make_pool(directory: Path, geometry: Geometry = GEOMETRY) -> Pool:
    """A pool of this process's "server"."""
    return Pool.create(directory, os.getpid(), geometry)


def slot_request(max_tokens: int = 8, end_ids: tuple[int, ...] = ()) -> SlotRequest:
    return SlotRequest(
        prompt=np.arange(3, dtype=np.int64),
        max_tokens=max_tokens,
        pacing="card",
        parameters=SamplingParameters(end_ids=end_ids),
    )


class HandPlayedTarget:
    """Commits what a test says."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def commit(self, index: int, tokens: list[int], finish: Finish = Finish.RUNNING) -> None:
        """Commit to the open session of a slot, every token but the last from the cache."""
        slot = self._pool.target_slot(index)
        slot.adopt(slot.session_id)
        flags = [True] * (len(tokens) - 1) + [False]
        slot.count_step(len(tokens), len(tokens) - 1, len(tokens), rejected=True)
        slot.commit(tokens, flags, [-0.5] * len(tokens), finish)

    def fail(self, index: int, finish: Finish = Finish.FAILED) -> None:
        slot = self._pool.target_slot(index)
        slot.adopt(slot.session_id)
        slot.fail(finish)

    def release(self, index: int) -> None:
        slot = self._pool.target_slot(index)
        slot.release(slot.session_id)

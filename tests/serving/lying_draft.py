"""A draft that lies: a process of its own that writes into the real pool until its input closes.

    python lying_draft.py SETTINGS_FILE SERVER_PID SEED

It writes only where the draft may write, and there whatever it likes; but not that it is another
process or long dead, for then the supervisor replaces it.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from card.cache import ROOT, Pool
from card.serving.geometry import pool_geometry
from card.settings import load_settings

FIRST_FIELD = "flip"
"""Where the draft's part of a slot begins; it is the last part."""


class LyingDraft:
    """Every lie is one method; all know which sessions are open and what they have committed."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self._pool = pool
        self._draw = np.random.default_rng(seed)
        self._bytes = pool.slots.view(np.uint8).reshape(len(pool.slots), -1)
        fields = pool.slots.dtype.fields
        assert fields is not None
        self._first_byte = fields[FIRST_FIELD][1]
        self._lies: tuple[Callable[[int], None], ...] = (
            self._scribble,
            self._garbage,
            self._not_a_number,
            self._cycle,
            self._out_of_range,
            self._old_session_id,
            self._endless,
            self._no_state,
        )

    def lie(self) -> None:
        """One lie about one slot."""
        index = int(self._draw.integers(len(self._pool.slots)))
        self._lies[self._draw.integers(len(self._lies))](index)

    def _publish(self, index: int, **changes: Any) -> None:
        """A tempting chain at the right root, but for `changes`."""
        slot, record = self._pool.draft_slot(index), self._pool.slots[index]
        count = int(self._draw.integers(1, 32))
        length = int(record["prompt_length"]) + int(record["committed"])
        tree: dict[str, Any] = {
            "session_id": slot.session_id,
            "root_length": length,
            "token": self._draw.integers(0, 3072, count),
            "parent": np.arange(ROOT, count - 1),
            "score": np.zeros(count),
        }
        slot.replace(**(tree | changes))

    def _scribble(self, index: int) -> None:
        """Any bytes anywhere."""
        size = self._bytes.shape[1]
        at = int(self._draw.integers(self._first_byte, size))
        count = min(int(self._draw.integers(1, 4096)), size - at)
        self._bytes[index, at : at + count] = self._draw.integers(0, 256, count)

    def _garbage(self, index: int) -> None:
        self._publish(index)

    def _not_a_number(self, index: int) -> None:
        values = self._draw.choice([np.nan, np.inf, -np.inf, 1e308], 4)
        self._publish(index, token=np.arange(4), parent=np.arange(-1, 3), score=values)

    def _cycle(self, index: int) -> None:
        self._publish(
            index, token=np.arange(3), parent=np.array([2, 0, 1]), score=np.array([0.0, -1, -2])
        )

    def _out_of_range(self, index: int) -> None:
        token = self._draw.choice([-1, 4096, 1 << 40, -(1 << 63), (1 << 63) - 1], 3)
        parent = self._draw.choice([-2, 5, 1 << 40], 3)
        self._publish(index, token=token, parent=parent, score=np.zeros(3))

    def _old_session_id(self, index: int) -> None:
        session_id = int(self._pool.slots["session_id"][index]) - int(self._draw.integers(0, 3))
        self._publish(index, session_id=session_id)

    def _endless(self, index: int) -> None:
        record = self._pool.slots[index]
        record["node_count"] = self._draw.choice([-1, 1 << 40, 513], 2)
        record["root_length"] = self._draw.choice([-1, 0, 1 << 40], 2)
        record["passes"] = self._draw.choice([-1, 0, 1 << 62], 2)

    def _no_state(self, index: int) -> None:
        """Of the process itself, until it beats again."""
        if index == 0:
            self._pool.header["draft_state"] = self._draw.choice([-1, 3, 1 << 40])


def main() -> None:
    file, server_pid, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    settings = load_settings(file)
    pool = Pool.open(settings.cache.directory, server_pid, pool_geometry(settings))
    assert pool is not None
    draft = LyingDraft(pool, seed)
    told = 0
    print("lies", flush=True)
    while not select.select([sys.stdin], [], [], 0.0002)[0]:
        for _ in range(4):
            draft.lie()
        told += 4
    print(told)


if __name__ == "__main__":
    main()

"""The table of engine requests and their sessions, in shared memory beside the pool.

The engine's worker knows only the client id of a request, and the Triton process learns that id
only when it makes the request. So the Triton process writes the id and the session's id here, and
the hook looks them up. Until then the request belongs to no session and gets no candidates.

As in the pool, every field is an aligned word with one writer, and a record's key is stored last.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from card.cache import Pool

MOST_CANDIDATES = 64
PASSES = 4
"""The table holds the candidates of so many passes of a session: the Triton process reads results
later than the hook offers candidates for the next pass."""

_LINE = 8  # words per cache line
_OFFERED = _LINE * (1 + MOST_CANDIDATES // _LINE)


class Bindings:
    """The mapped table.

    bound    [slots, 8] written by the Triton process: client id (0: none), session id
    offered  [slots, PASSES, 72] written by the hook: length of the text before the pass, count,
             session id, candidates
    owner    [8] written at creation: process id of the Triton process
    """

    def __init__(self, path: Path, descriptor: int, slots: int) -> None:
        """Map an open file. Raises `ValueError` if it was made for another number of slots."""
        self._path, self._descriptor = path, descriptor
        self._inode = os.fstat(descriptor).st_ino
        if os.fstat(descriptor).st_size != _bytes(slots):
            raise ValueError(f"{path} was made for another number of slots")
        self._map = mmap.mmap(descriptor, _bytes(slots))
        table = np.frombuffer(self._map, np.int64)
        self._owner = table[:_LINE]
        self._bound = table[_LINE : _LINE * (1 + slots)].reshape(slots, _LINE)
        self._offered = table[_LINE * (1 + slots) :].reshape(slots, PASSES, _OFFERED)

    @classmethod
    def create(cls, pool: Pool) -> Bindings:
        """Make a table beside the pool in place of an older one, locked while its owner lives."""
        path = _path(pool)
        new = path.with_name(f".requests-{os.getpid()}")
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        # A sweep removes files that are named after a pool and that no process locks.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.posix_fallocate(descriptor, 0, _bytes(pool.geometry.slots))
        table = cls(path, descriptor, pool.geometry.slots)
        table._owner[0] = os.getpid()
        new.rename(path)
        return table

    @classmethod
    def open(cls, pool: Pool) -> Bindings | None:
        """The table beside the pool; None while there is none."""
        path = _path(pool)
        try:
            return cls(path, os.open(path, os.O_RDWR), pool.geometry.slots)
        except FileNotFoundError:
            return None

    def close(self) -> None:
        """Close the file and release its lock. The table must not be used afterwards."""
        del self._owner, self._bound, self._offered
        self._map.close()
        os.close(self._descriptor)

    @property
    def is_current(self) -> bool:
        """Whether the file is still there: not removed with its pool, nor replaced."""
        try:
            return os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            return False

    # --- the Triton process -------------------------------------------------------------------

    def bind(self, slot: int, client_id: int, session_id: int) -> None:
        """Record that the request of `client_id` decodes the session of `session_id`."""
        self._bound[slot, 1] = session_id
        self._bound[slot, 0] = client_id

    def release(self, slot: int) -> None:
        self._bound[slot, 0] = 0

    def offered(self, slot: int, session_id: int, length: int) -> list[int]:
        """Candidates that the hook gave for the pass behind `length` tokens; none if it gave none,
        or if they are overwritten."""
        for row in self._offered[slot]:
            if (int(row[0]), int(row[2])) == (length, session_id):
                tokens: list[int] = row[_LINE : _LINE + int(row[1])].tolist()
                return tokens if row[0] == length else []
        return []

    # --- the hook -----------------------------------------------------------------------------

    @property
    def owner(self) -> int:
        """Process id of the Triton process that makes the requests."""
        return int(self._owner[0])

    def requests(self) -> dict[int, tuple[int, int]]:
        """Slot and session id by client id."""
        bound: NDArray[np.int64] = self._bound[:, :2].copy()
        return {
            client_id: (slot, session_id)
            for slot, (client_id, session_id) in enumerate(bound.tolist())
            if client_id
        }

    def offer(
        self, slot: int, session_id: int, number: int, length: int, tokens: list[int]
    ) -> None:
        """Store the candidates of the session's pass of that number, behind `length` tokens."""
        row = self._offered[slot, number % PASSES]
        row[0] = 0  # no text is empty: the row holds nothing while it is written
        row[_LINE : _LINE + len(tokens)] = tokens
        row[2] = session_id
        row[1] = len(tokens)
        row[0] = length


def _path(pool: Pool) -> Path:
    return pool.path.with_name(f"requests-{pool.path.name}")


def _bytes(slots: int) -> int:
    return 8 * (_LINE + slots * (_LINE + PASSES * _OFFERED))

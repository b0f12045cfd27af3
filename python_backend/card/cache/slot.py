"""What every role may read of a slot. What a role must not write, its view has no method for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from card.cache.chain import read_chain
from card.cache.layout import Finish, SlotState
from card.cache.record import Record
from card.cache.request import SlotRequest, read_request
from card.cache.tree import Tree

_READ_ATTEMPTS = 3


class SlotView:
    """What every role may read."""

    def __init__(self, record: Record, index: int) -> None:
        self._record = record
        self.index = index
        self.capacity = len(record.words("node_token")) // 2
        """Most nodes of one tree."""

    @property
    def state(self) -> SlotState:
        return SlotState(self._record["state"])

    @property
    def session_id(self) -> int:
        return int(self._record["session_id"])

    def is_open(self, session_id: int) -> bool:
        """Whether the session of `session_id` is still wanted."""
        record = self._record
        return bool(record["state"] == SlotState.OPEN and record["session_id"] == session_id)

    def request(self) -> SlotRequest:
        """The request, valid while the slot is open with the session id read before and after."""
        return read_request(self._record)

    def opened(self) -> tuple[int, SlotRequest] | None:
        """Session id and request of an open slot; None if it is not open, or was closed and
        opened anew while it was read (a torn request may not even be one)."""
        session_id = self.session_id
        if not self.is_open(session_id):
            return None
        try:
            request = self.request()
        except ValueError:
            return None
        return (session_id, request) if self.is_open(session_id) else None

    def committed(self, session_id: int) -> int:
        """Output tokens that the target has committed to the session of `session_id`."""
        record = self._record
        if record["commit_session_id"] != session_id:
            return 0
        return int(record["committed"])

    def output(self, start: int, stop: int) -> NDArray[np.int64]:
        """Committed output tokens [stop - start] int64 (a copy)."""
        tokens: NDArray[np.int64] = self._record["output"][start:stop].copy()
        return tokens

    def finish(self, session_id: int) -> Finish:
        """Why the target stopped; it counts only together with the last of the tokens."""
        record = self._record
        if record["commit_session_id"] != session_id:
            return Finish.RUNNING
        if record["committed"] != record["finish_length"]:
            return Finish.RUNNING  # being committed, or a target was killed just there
        return Finish(record["finish"])

    def tree(self, session_id: int, vocabulary: int, *, remote: bool = False) -> Tree | None:
        """A validated snapshot of the draft's tree for `session_id`, or None.

        remote  a device drafts for the session: its chain is the tree
        """
        record = self._record
        if remote:
            return read_chain(record, session_id, vocabulary)
        for _ in range(_READ_ATTEMPTS):
            flip = record["flip"]
            half = flip & 1
            if record.words("tree_session_id")[half] != session_id:
                return None
            count = record.words("node_count")[half]
            if not 0 <= count <= self.capacity:
                return None
            root_length = record.words("root_length")[half]
            first = half * self.capacity
            token = record.read("node_token", first, count)
            parent = record.read("node_parent", first, count)
            score = record.read("node_score", first, count)
            if record["flip"] == flip:
                return Tree.checked(root_length, token, parent, score, vocabulary)
        return None

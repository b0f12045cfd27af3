"""The view that the draft has of a slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from card.cache.layout import DRAFT_COUNTERS
from card.cache.record import Record
from card.cache.slot import SlotView
from card.cache.stopwatch import Stopwatch

Integers = Sequence[int] | NDArray[np.int64]
Reals = Sequence[float] | NDArray[np.float64]
_MOST_FLIPS = (1 << 62) - 1


class DraftSlot(SlotView):
    """The view of the draft: publishes trees."""

    def __init__(self, record: Record, index: int) -> None:
        super().__init__(record, index)
        self._stopwatch = Stopwatch(record, "draft_running_ns", "draft_idle_ns")

    def stopped_until(self, session_id: int) -> int:
        """Length of prompt and output below which the target wants no candidates."""
        record = self._record
        if record["commit_session_id"] != session_id:
            return 0
        return int(record["stopped_until"])

    def replace(
        self,
        session_id: int,
        root_length: int,
        token: Integers,
        parent: Integers,
        score: Reals,
    ) -> None:
        """Publish a whole tree in the half that nobody reads, then flip."""
        record = self._record
        half = (record["flip"] + 1) & 1
        record.write("tree_session_id", half, [session_id])
        record.write("root_length", half, [root_length])
        self._write_nodes(half * self.capacity, token, parent, score)
        record.write("node_count", half, [len(token)])
        record.write("passes", half, [0])
        record.write("exhausted", half, [0])
        # Whatever stood there: a count at its end would be the last that this slot ever had.
        record["flip"] = (record["flip"] + 1) & _MOST_FLIPS

    def append(
        self,
        token: Integers,
        parent: Integers,
        score: Reals,
        passes: int,
    ) -> None:
        """Add nodes to the published tree: records first, count last.

        passes  made since this root; a target that waits goes by them
        """
        record = self._record
        half = record["flip"] & 1
        count = record.words("node_count")[half]
        self._write_nodes(half * self.capacity + count, token, parent, score)
        record.write("node_count", half, [count + len(token)])
        record.write("passes", half, [passes])

    def _write_nodes(self, at: int, token: Integers, parent: Integers, score: Reals) -> None:
        record = self._record
        record.write("node_token", at, token)
        record.write("node_parent", at, parent)
        record.write("node_score", at, score)

    def exhaust(self) -> None:
        """Tell a target that waits that no node is added to this tree any more."""
        record = self._record
        record.write("exhausted", record["flip"] & 1, [1])

    def verifying(self, session_id: int) -> int:
        """Candidates in the target's pass that is under way for `session_id`."""
        record = self._record
        return int(record["verifying"]) if record["commit_session_id"] == session_id else 0

    def awaited(self, session_id: int) -> int:
        """Passes below each commit for which the target waits; 0: it waits for none."""
        record = self._record
        return int(record["awaited"]) if record["commit_session_id"] == session_id else 0

    def count_re_root(self, *, restarted: bool, lost_layers: int = 0) -> None:
        record = self._record
        record["re_roots"] += 1
        if restarted:
            record["restarts"] += 1
        if lost_layers:
            record["lost_layers"] += lost_layers

    def count_growth(self, layers: int, saved_rows: int) -> None:
        """Account for nodes that were added to the tree."""
        if layers:
            self._record["layers"] += layers
        if saved_rows:
            self._record["saved_rows"] += saved_rows

    def count_time(self, *, runs: bool) -> None:
        """Account for the time since the last call: the tree grew, or had nothing to grow."""
        self._stopwatch.look(runs)

    def reset_counters(self) -> None:
        for name in DRAFT_COUNTERS:
            self._record[name] = 0
        self._stopwatch.restart()

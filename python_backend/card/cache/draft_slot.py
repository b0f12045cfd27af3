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

    @property
    def capacity(self) -> int:
        """Most nodes of one tree."""
        return int(self._record["node_token"].shape[1])

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
        count = len(token)
        record["tree_session_id"][half] = session_id
        record["root_length"][half] = root_length
        record["node_token"][half, :count] = token
        record["node_parent"][half, :count] = parent
        record["node_score"][half, :count] = score
        record["node_count"][half] = count
        record["passes"][half] = 0
        record["exhausted"][half] = 0
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
        start = int(record["node_count"][half])
        stop = start + len(token)
        record["node_token"][half, start:stop] = token
        record["node_parent"][half, start:stop] = parent
        record["node_score"][half, start:stop] = score
        record["node_count"][half] = stop
        record["passes"][half] = passes

    def exhaust(self) -> None:
        """Tell a target that waits that no node is added to this tree any more."""
        record = self._record
        record["exhausted"][record["flip"] & 1] = 1

    def verifying(self, session_id: int) -> int:
        """Candidates in the target's pass that is under way for `session_id`."""
        record = self._record
        return int(record["verifying"]) if record["commit_session_id"] == session_id else 0

    def awaited(self, session_id: int) -> int:
        """Passes below each commit for which the target waits; 0: it waits for none."""
        record = self._record
        return int(record["awaited"]) if record["commit_session_id"] == session_id else 0

    def count_re_root(self, *, restarted: bool, lost_layers: int = 0) -> None:
        self._record["re_roots"] += 1
        self._record["restarts"] += restarted
        self._record["lost_layers"] += lost_layers

    def count_growth(self, layers: int, saved_rows: int) -> None:
        """Account for nodes that were added to the tree."""
        self._record["layers"] += layers
        self._record["saved_rows"] += saved_rows

    def count_time(self, *, runs: bool) -> None:
        """Account for the time since the last call: the tree grew, or had nothing to grow."""
        self._stopwatch.look(runs)

    def reset_counters(self) -> None:
        for name in DRAFT_COUNTERS:
            self._record[name] = 0
        self._stopwatch.restart()

"""A slot as its writers see it: the draft's trees, the target's commits, a device's chains."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from card.cache.header import Bell
from card.cache.layout import DRAFT_COUNTERS, MAX_ROWS, TARGET_COUNTERS, Finish
from card.cache.reports import States, Step, begin_states, packed, write_states, write_step
from card.cache.request import Record
from card.cache.slot import SlotView, Stopwatch
from card.cache.tree import chain_begins_at, write_chain
from card.sampling import Likeliest

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
        """Publish a whole tree in the half that no reader uses, then flip the halves."""
        record = self._record
        half = (record["flip"] + 1) & 1
        record.write("tree_session_id", half, [session_id])
        record.write("root_length", half, [root_length])
        self._write_nodes(half * self.capacity, token, parent, score)
        record.write("node_count", half, [len(token)])
        record.write("passes", half, [0])
        record.write("exhausted", half, [0])
        # A count that stands at its greatest value could never be raised again.
        record["flip"] = (record["flip"] + 1) & _MOST_FLIPS

    def append(
        self,
        token: Integers,
        parent: Integers,
        score: Reals,
        passes: int,
    ) -> None:
        """Add nodes to the published tree: records first, count last.

        passes  that the draft made since this root; a waiting target counts them
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
        """Tell a waiting target that the draft adds no more nodes to this tree."""
        record = self._record
        record.write("exhausted", record["flip"] & 1, [1])

    def verifying(self, session_id: int) -> int:
        """Candidates in the target's pass that is under way for `session_id`."""
        record = self._record
        return int(record["verifying"]) if record["commit_session_id"] == session_id else 0

    def awaited(self, session_id: int) -> int:
        """Draft passes below each commit for which the target waits; 0: it does not wait."""
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
        """Count nodes that the draft added to the tree."""
        if layers:
            self._record["layers"] += layers
        if saved_rows:
            self._record["saved_rows"] += saved_rows

    def count_time(self, *, runs: bool) -> None:
        """Count the time since the last call as growing (`runs`) or as idle."""
        self._stopwatch.look(runs)

    def reset_counters(self) -> None:
        for name in DRAFT_COUNTERS:
            self._record[name] = 0
        self._stopwatch.restart()


class DraftProgress(NamedTuple):
    """The draft's progress below one root.

    passes     that the draft made
    exhausted  the draft adds no more nodes before the next commit
    """

    passes: int = 0
    exhausted: bool = False


_NO_PROGRESS = DraftProgress()


class TargetSlot(SlotView):
    """The view of the target: queries trees, commits tokens, releases sessions."""

    def __init__(self, record: Record, index: int, bell: Bell) -> None:
        super().__init__(record, index)
        self._bell = bell
        self._stopwatch = Stopwatch(record, "target_running_ns", "target_waiting_ns")

    def adopt(self, session_id: int) -> int:
        """Take the session over and return the number of committed tokens.

        A fresh session starts at 0. A session of a killed target continues behind its last commit
        and keeps its counters.
        """
        record = self._record
        # The target that stopped the draft is gone; its order must not hold for this session.
        record["stopped_until"] = 0
        if "states" in record:
            begin_states(record, session_id, 0)
        record["verifying"] = 0
        record["awaited"] = 0
        if record["commit_session_id"] != session_id:
            record["committed"] = 0
            record["finish_length"] = 0
            record["finish"] = Finish.RUNNING
            for name in TARGET_COUNTERS:
                record[name] = 0
            record["tokens_per_step"][:] = 0
            record["accepted_at"][:] = 0
            record["steps_written"] = 0
            record["commit_session_id"] = session_id
        self._stopwatch.restart()
        return int(record["committed"])

    def commit(
        self,
        tokens: list[int],
        accepted: list[bool],
        log_probabilities: list[float],
        finish: Finish,
        likeliest: Sequence[Likeliest] = (),
    ) -> None:
        """Append tokens to the output: records first, then the finish, the count last.

        likeliest  the likeliest ids at every token, if the request asks for them
        """
        record = self._record
        start = record["committed"]
        stop = start + len(tokens)
        record.write("output", start, tokens)
        record.write("is_accepted", start, accepted)
        record.write("log_probability", start, log_probabilities)
        for place, found in enumerate(likeliest, start):
            self._write_likeliest("likeliest_of_output", place, found)
        if finish != Finish.RUNNING:
            record["finish_length"] = stop
            record["finish"] = finish
        record["committed"] = stop
        if not start or finish != Finish.RUNNING:
            self._bell.ring()

    @property
    def state_tokens(self) -> int:
        """Tokens whose hidden states the slot holds; 0: the draft reads none."""
        return len(self._record["states"]) if "states" in self._record else 0

    def publish_states(self, first: int, states: States) -> None:
        """Publish the hidden states of the tokens from position `first` of prompt and output on;
        before they are committed."""
        write_states(self._record, first, states)

    def score_prompt(
        self, place: int, log_probability: float, likeliest: Likeliest | None = None
    ) -> None:
        """Report the prompt's token at that place (1 or more); before the first commit."""
        self._record["prompt_log_probability"][place] = log_probability
        if likeliest is not None:
            self._write_likeliest("likeliest_of_prompt", place, likeliest)

    def _write_likeliest(self, field: str, place: int, found: Likeliest) -> None:
        words = self._record[field][place]
        words[:] = packed(found, len(words))

    def stop_draft_until(self, length: int) -> None:
        """Tell the draft to make no candidates below this length of prompt and output."""
        self._record["stopped_until"] = length

    def await_draft(self, passes: int) -> None:
        """Announce that the target waits for `passes` draft passes below each commit. The draft
        makes no more than these. 0: the target does not wait."""
        self._record["awaited"] = passes

    def fail(self, finish: Finish = Finish.FAILED) -> None:
        """End the session with an error, which `card` reports to the client."""
        self._record["finish_length"] = self._record["committed"]
        self._record["finish"] = finish
        self._bell.ring()

    def count_step(
        self, committed: int, accepted: int, drafted: int, *, rejected: bool, foreign: int = 0
    ) -> None:
        """Count one pass: tokens committed, candidates accepted, candidates verified, whether the
        target's own token replaced candidates, and how many accepted candidates the target would
        not have chosen."""
        record = self._record
        record["steps"] += 1
        if drafted:
            record["drafts"] += 1
            record["drafted"] += drafted
        if accepted:
            record["accepted"] += accepted
            accepted_at = record.words("accepted_at")
            for place in range(min(accepted, MAX_ROWS)):
                accepted_at[place] += 1
        if rejected:
            record["corrections"] += 1
        if foreign:
            record["foreign"] += foreign
        record.words("tokens_per_step")[min(committed, MAX_ROWS)] += 1

    def count_reuse(self, tokens: int) -> None:
        """Count prompt tokens with reused KV."""
        record = self._record
        record["reuses"] += tokens > 0
        record["reused_tokens"] += tokens

    def trace(self, step: Step) -> None:
        """Report a step, before the commit of its tokens."""
        behind, now_ns = self._record["committed"], time.monotonic_ns()
        write_step(self._record, replace(step, behind=behind, committed_ns=now_ns))

    def count_query(self, *, hit: bool) -> None:
        record = self._record
        record["queries"] += 1
        record["hits" if hit else "misses"] += 1

    def count_time(self, *, runs: bool) -> None:
        """Count the time since the last call as running (`runs`) or as waiting for the draft."""
        self._stopwatch.look(runs)

    def release(self, session_id: int) -> None:
        """Promise never to touch the slot for this session again."""
        self._record["released"] = session_id
        self._bell.ring()

    def draft_progress(
        self, session_id: int, root_length: int, *, remote: bool = False
    ) -> DraftProgress:
        """The draft's progress since it put its tree's root at `root_length` tokens; none if the
        root is elsewhere.

        remote  a device drafts for the session; the target waits only until its chain arrives
        """
        record = self._record
        if remote:
            stands = chain_begins_at(record, session_id) == root_length
            return DraftProgress(passes=int(stands), exhausted=stands)
        half = record["flip"] & 1
        if record.words("tree_session_id")[half] != session_id:
            return _NO_PROGRESS
        if record.words("root_length")[half] != root_length:
            return _NO_PROGRESS
        return DraftProgress(record.words("passes")[half], bool(record.words("exhausted")[half]))

    def verify(self, candidates: int) -> None:
        """Tell the draft the number of candidates in the pass under way; 0: there are none."""
        self._record["verifying"] = candidates


class RemoteSlot(SlotView):
    """The view of `RemoteDrafts`: publishes the chains that devices send."""

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt, valid while the slot is open with the session id read before."""
        return int(self._record["prompt_length"])

    def publish(self, session_id: int, root_length: int, tokens: Sequence[int]) -> None:
        """Replace the session's chain; see `write_chain`."""
        write_chain(self._record, session_id, root_length, tokens)

"""A slot as its two ends see it: the target commits tokens, `card` opens, reads and closes it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from card.cache.chains import chain_begins_at, read_chain
from card.cache.header import Bell, Record
from card.cache.layout import (
    MAX_ROWS,
    TARGET_COUNTERS,
    Finish,
    SlotState,
)
from card.cache.reports import Step, packed, read_steps, unpacked, write_step
from card.cache.slot import SlotRequest, SlotView, Stopwatch, write_request
from card.cache.states import States, begin_states, write_states
from card.cache.tree import NO_PROGRESS, READ_ATTEMPTS, DraftProgress, Tree
from card.sampling import Likeliest


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
        """Most tokens with hidden states in the slot; 0: the draft reads none."""
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

    def tree(self, session_id: int, vocabulary: int, *, remote: bool = False) -> Tree | None:
        """See `published_tree`."""
        return published_tree(self._record, session_id, vocabulary, remote=remote)

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
            return NO_PROGRESS
        if record.words("root_length")[half] != root_length:
            return NO_PROGRESS
        return DraftProgress(record.words("passes")[half], bool(record.words("exhausted")[half]))

    def verify(self, candidates: int) -> None:
        """Tell the draft the number of candidates in the pass under way; 0: there are none."""
        self._record["verifying"] = candidates


@dataclass(frozen=True, slots=True)
class SlotCounters:
    """Counters of one session; `tokens_per_step` is a histogram over 0..MAX_ROWS.

    drafts       steps that verified candidates
    foreign      accepted candidates that the target would not have chosen
    layers       layers of candidates that the draft added to its trees
    lost_layers  of these, layers that commits removed without a token accepted from them
    saved_rows   rows of draft passes saved because nodes share their subtrees
    accepted_at  [MAX_ROWS] int64, accepted candidates by their distance behind the committed text
    reused_tokens  prompt tokens with KV that the target had kept
    """

    steps: int
    queries: int
    hits: int
    misses: int
    corrections: int
    drafts: int
    drafted: int
    accepted: int
    foreign: int
    reused_tokens: int
    re_roots: int
    restarts: int
    layers: int
    lost_layers: int
    saved_rows: int
    tokens_per_step: NDArray[np.int64]
    accepted_at: NDArray[np.int64]


class CardSlot(SlotView):
    """The view of `card`: opens a session, reads its commits, closes it."""

    def __init__(self, record: Record, index: int, bell: Bell) -> None:
        super().__init__(record, index)
        self._bell = bell

    def open(self, request: SlotRequest, session_id: int) -> None:
        """Publish a session: everything first, the state last. The slot must be free."""
        record = self._record
        if record["state"] != SlotState.FREE:
            raise RuntimeError(f"slot {self.index} is not free")
        record["session_id"] = session_id
        write_request(record, request)
        record["state"] = SlotState.OPEN
        self._bell.ring()

    def close(self) -> None:
        """End the session; the slot is free again once the target released it."""
        self._record["state"] = SlotState.CLOSED
        self._bell.ring()

    def reclaim(self, *, target_is_dead: bool = False) -> bool:
        """Free a closed slot if the target released it, or is dead and never will."""
        record = self._record
        if record["state"] != SlotState.CLOSED:
            return False
        if not target_is_dead and record["released"] != record["session_id"]:
            return False
        record["state"] = SlotState.FREE
        return True

    def is_accepted(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Which committed output tokens were accepted candidates, [stop - start] bool."""
        return self._record["is_accepted"][start:stop] != 0  # type: ignore[no-any-return]

    def log_probabilities(self, start: int, stop: int) -> NDArray[np.float64]:
        """Log-probabilities of committed output tokens under the unprocessed logits."""
        values: NDArray[np.float64] = self._record["log_probability"][start:stop].copy()
        return values

    def likeliest(self, place: int) -> list[tuple[int, float]]:
        """The likeliest ids at `place` of the output, with their log-probabilities."""
        return unpacked(self._record["likeliest_of_output"][place])

    def prompt_log_probability(self, place: int) -> float:
        """Log-probability of the prompt's token at `place` (1 or more); valid if the request asks
        for it and the session has a committed token."""
        return float(self._record["prompt_log_probability"][place])

    def likeliest_of_prompt(self, place: int) -> list[tuple[int, float]]:
        """The likeliest ids at `place` of the prompt; valid under the same condition."""
        return unpacked(self._record["likeliest_of_prompt"][place])

    def steps(self, session_id: int, first: int) -> tuple[list[Step], int]:
        """The session's latest steps with committed tokens, from number `first` on as far as they
        are kept, and the number of the next step. Without `trace` in the request there are none.
        """
        if self._record["commit_session_id"] != session_id:
            return [], first
        found, following = read_steps(self._record, first)
        # A step is reported before its tokens: the last one's may be written at this moment.
        if found and found[-1].behind + found[-1].committed > int(self._record["committed"]):
            return found[:-1], following - 1
        return found, following

    def tree(self, session_id: int, vocabulary: int, *, remote: bool = False) -> Tree | None:
        """See `published_tree`."""
        return published_tree(self._record, session_id, vocabulary, remote=remote)

    def counters(self) -> SlotCounters:
        record = self._record
        return SlotCounters(
            **{
                name: int(record[name])
                for name in SlotCounters.__slots__
                if name not in ("tokens_per_step", "accepted_at")
            },
            tokens_per_step=record["tokens_per_step"].copy(),
            accepted_at=record["accepted_at"].copy(),
        )


def published_tree(
    record: Record, session_id: int, vocabulary: int, *, remote: bool = False
) -> Tree | None:
    """A validated snapshot of the draft's tree for `session_id`, or None.

    remote  a device drafts for the session; its chain is returned as the tree
    """
    if remote:
        return read_chain(record, session_id, vocabulary)
    capacity = len(record.words("node_token")) // 2
    for _ in range(READ_ATTEMPTS):
        flip = record["flip"]
        half = flip & 1
        if record.words("tree_session_id")[half] != session_id:
            return None
        count = record.words("node_count")[half]
        if not 0 <= count <= capacity:
            return None
        root_length = record.words("root_length")[half]
        first = half * capacity
        token = record.read("node_token", first, count)
        parent = record.read("node_parent", first, count)
        score = record.read("node_score", first, count)
        if record["flip"] == flip:
            return Tree.checked(root_length, token, parent, score, vocabulary)
    return None

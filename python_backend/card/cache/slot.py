"""One view of a slot per role. What a role must not write, its view has no method for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from card.cache.bell import Bell
from card.cache.chain import chain_begins_at, read_chain, write_chain
from card.cache.layout import DRAFT_COUNTERS, TARGET_COUNTERS, Finish, SlotState
from card.cache.likeliest import packed, unpacked
from card.cache.record import Record
from card.cache.request import SlotRequest, read_request, write_request
from card.cache.steps import Step, read_steps, write_step
from card.cache.stopwatch import Stopwatch
from card.cache.tree import Tree
from card.sampling import Likeliest

Integers = Sequence[int] | NDArray[np.int64]
Reals = Sequence[float] | NDArray[np.float64]

_MOST_FLIPS = (1 << 62) - 1
_READ_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class SlotCounters:
    """What happened to one session so far; `tokens_per_step` is a histogram over 0..MAX_ROWS.

    drafts       steps that verified candidates
    foreign      accepted candidates that the target would not have chosen
    layers       of candidates that the draft added to its trees, and lost_layers: of these, those
                 that commits removed without making one of them text
    saved_rows   of draft passes, because nodes share what is below them
    accepted_at  [MAX_ROWS] int64, candidates accepted by their place behind the committed text
    reused_tokens  of the prompt, whose KV the target had kept
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


@dataclass(frozen=True, slots=True)
class DraftProgress:
    """How far the draft got below one root.

    passes     it made
    exhausted  it adds nothing more before the next commit
    """

    passes: int = 0
    exhausted: bool = False


_NO_PROGRESS = DraftProgress()


class _Slot:
    """What every role may read."""

    def __init__(self, record: Record, index: int) -> None:
        self._record = record
        self.index = index

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
            if record["tree_session_id"][half] != session_id:
                return None
            count = int(record["node_count"][half])
            if not 0 <= count <= record["node_token"].shape[1]:
                return None
            root_length = int(record["root_length"][half])
            token = record["node_token"][half, :count].copy()
            parent = record["node_parent"][half, :count].copy()
            score = record["node_score"][half, :count].copy()
            if record["flip"] == flip:
                return Tree.checked(root_length, token, parent, score, vocabulary)
        return None


class CardSlot(_Slot):
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
        """End the session for everybody; the slot is free again once the target let go of it."""
        self._record["state"] = SlotState.CLOSED
        self._bell.ring()

    def reclaim(self, *, target_is_dead: bool = False) -> bool:
        """Free a closed slot if the target released it (or can never do so)."""
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
        """The likeliest ids at that place of the output, with their log-probabilities."""
        return unpacked(self._record["likeliest_of_output"][place])

    def prompt_log_probability(self, place: int) -> float:
        """Of the prompt's token at that place (1 or more), if the request asked for it and the
        session has a committed token."""
        return float(self._record["prompt_log_probability"][place])

    def likeliest_of_prompt(self, place: int) -> list[tuple[int, float]]:
        """The likeliest ids at that place of the prompt, likewise."""
        return unpacked(self._record["likeliest_of_prompt"][place])

    def steps(self, session_id: int, first: int) -> tuple[list[Step], int]:
        """The session's latest steps, from number `first` on if they are still kept, and the number
        of the next one; none unless the request wants to follow them."""
        if self._record["commit_session_id"] != session_id:
            return [], first
        return read_steps(self._record, first)

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


class TargetSlot(_Slot):
    """The view of the target: queries trees, commits tokens, releases sessions."""

    def __init__(self, record: Record, index: int, bell: Bell) -> None:
        super().__init__(record, index)
        self._bell = bell
        self._stopwatch = Stopwatch(record, "target_running_ns", "target_waiting_ns")

    def adopt(self, session_id: int) -> int:
        """Take the session over and return how many tokens are committed already.

        A fresh session starts at 0; one that a killed target left behind goes on where its
        commits end, and its counters with it.
        """
        record = self._record
        # Whoever stopped the draft is gone, and the draft must not take it for this session's.
        record["stopped_until"] = 0
        record["verifying"] = 0
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

        likeliest  of every token, if the request asks for any
        """
        record = self._record
        start = record["committed"]
        stop = start + len(tokens)
        record["output"][start:stop] = tokens
        record["is_accepted"][start:stop] = accepted
        record["log_probability"][start:stop] = log_probabilities
        for place, found in enumerate(likeliest, start):
            self._write_likeliest("likeliest_of_output", place, found)
        if finish != Finish.RUNNING:
            record["finish_length"] = stop
            record["finish"] = finish
        record["committed"] = stop
        if not start or finish != Finish.RUNNING:
            self._bell.ring()

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
        """Candidates are not wanted below this length of prompt and output."""
        self._record["stopped_until"] = length

    def fail(self, finish: Finish = Finish.FAILED) -> None:
        """Give the session up; `card` tells the client."""
        self._record["finish_length"] = self._record["committed"]
        self._record["finish"] = finish
        self._bell.ring()

    def count_step(
        self, committed: int, accepted: int, drafted: int, *, rejected: bool, foreign: int = 0
    ) -> None:
        """Account for one pass: tokens committed, candidates accepted, candidates verified, whether
        a token of the target's own took the place of candidates, and how many of the accepted were
        not its choice."""
        record = self._record
        record["steps"] += 1
        record["accepted"] += accepted
        record["drafts"] += drafted > 0
        record["drafted"] += drafted
        record["accepted_at"][:accepted] += 1
        record["corrections"] += rejected
        record["foreign"] += foreign
        record["tokens_per_step"][min(committed, len(record["tokens_per_step"]) - 1)] += 1

    def count_reuse(self, tokens: int) -> None:
        """Account for the beginning of a text, of which so many tokens need not be read."""
        record = self._record
        record["reuses"] += tokens > 0
        record["reused_tokens"] += tokens

    @property
    def is_traced(self) -> bool:
        """Whether somebody wants to follow the session's steps."""
        return bool(self._record["trace"])

    def trace(self, step: Step) -> None:
        """Tell of a step whose tokens are committed next."""
        behind, now_ns = self._record["committed"], time.monotonic_ns()
        write_step(self._record, replace(step, behind=behind, committed_ns=now_ns))

    def count_query(self, *, hit: bool) -> None:
        record = self._record
        record["queries"] += 1
        record["hits" if hit else "misses"] += 1

    def count_time(self, *, runs: bool) -> None:
        """Account for the time since the last call: the session ran, or waited for the draft."""
        self._stopwatch.look(runs)

    def release(self, session_id: int) -> None:
        """Promise never to touch the slot for this session again."""
        self._record["released"] = session_id
        self._bell.ring()

    def draft_progress(
        self, session_id: int, root_length: int, *, remote: bool = False
    ) -> DraftProgress:
        """What the draft did since its tree's root is at `root_length` tokens; nothing where the
        root is elsewhere.

        remote  a device drafts for the session: it sends what it wants verified, so nothing is to
                be waited for once its chain stands there
        """
        record = self._record
        if remote:
            stands = chain_begins_at(record, session_id) == root_length
            return DraftProgress(passes=int(stands), exhausted=stands)
        half = record["flip"] & 1
        if record["tree_session_id"][half] != session_id:
            return _NO_PROGRESS
        if record["root_length"][half] != root_length:
            return _NO_PROGRESS
        return DraftProgress(int(record["passes"][half]), bool(record["exhausted"][half]))

    def verify(self, candidates: int) -> None:
        """Tell the draft that so many candidates are in the pass under way; 0: none is."""
        self._record["verifying"] = candidates


class RemoteSlot(_Slot):
    """The view of whoever takes what devices draft: publishes chains."""

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt, valid while the slot is open with the session id read before."""
        return int(self._record["prompt_length"])

    def publish(self, session_id: int, root_length: int, tokens: Sequence[int]) -> None:
        """Put a chain in the place of the one before; see `write_chain`."""
        write_chain(self._record, session_id, root_length, tokens)


class DraftSlot(_Slot):
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

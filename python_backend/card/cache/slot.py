"""The view with which every role reads a slot, and the view with which `card` opens and closes it.

A role's view has no method for fields that the role must not write.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from card.cache.header import Bell
from card.cache.layout import Finish, SlotState
from card.cache.reports import States, Step, read_states, read_steps, unpacked
from card.cache.request import Record, SlotRequest, read_request, write_request
from card.cache.tree import Tree, read_chain

_READ_ATTEMPTS = 3


class SlotView:
    """The part of a slot that every role may read."""

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
        """Whether the slot is open for the session of `session_id`."""
        record = self._record
        return bool(record["state"] == SlotState.OPEN and record["session_id"] == session_id)

    def request(self) -> SlotRequest:
        """The request, valid while the slot is open with the session id read before and after."""
        return read_request(self._record)

    def opened(self) -> tuple[int, SlotRequest] | None:
        """Session id and request of an open slot; None if the slot is not open, or changed while
        it was read."""
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
        """Why the target stopped; valid only once the last token is committed."""
        record = self._record
        if record["commit_session_id"] != session_id:
            return Finish.RUNNING
        if record["committed"] != record["finish_length"]:
            return Finish.RUNNING  # a commit is under way, or a kill interrupted it
        return Finish(record["finish"])

    def tree(self, session_id: int, vocabulary: int, *, remote: bool = False) -> Tree | None:
        """A validated snapshot of the draft's tree for `session_id`, or None.

        remote  a device drafts for the session; its chain is returned as the tree
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

    def states(self, session_id: int, start: int) -> tuple[int, States]:
        """The first position and the hidden states of the session's tokens from position `start` of
        prompt and output on, as far as the target published them and the slot still holds them."""
        return read_states(self._record, session_id, start)


class Stopwatch:
    """Divides a session's time between two counters of its slot, in nanoseconds."""

    def __init__(self, record: Record, running: str, waiting: str) -> None:
        self._record = record
        self._counters = (waiting, running)
        self.restart()

    def restart(self) -> None:
        """Begin another session; the time until its first look is not counted."""
        self._spent_ns = [int(self._record[name]) for name in self._counters]
        self._looked_ns: int | None = None
        self._runs = False

    def look(self, runs: bool) -> None:
        """Add the time since the last look to the counter of the state seen at that look."""
        now_ns = time.perf_counter_ns()
        if self._looked_ns is not None:
            self._spent_ns[self._runs] += now_ns - self._looked_ns
            self._record[self._counters[self._runs]] = self._spent_ns[self._runs]
        self._looked_ns, self._runs = now_ns, runs


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
        """The session's latest steps whose tokens are committed, from number `first` on if they are
        still kept, and the number of the next step. Without `trace` in the request there are none.
        """
        if self._record["commit_session_id"] != session_id:
            return [], first
        found, following = read_steps(self._record, first)
        # A step is reported before its tokens: the last one's may be written at this moment.
        if found and found[-1].behind + found[-1].committed > int(self._record["committed"]):
            return found[:-1], following - 1
        return found, following

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


View = TypeVar("View", bound=SlotView)


class SlotWatch:
    """Remembers states and session ids of all slots between two looks."""

    def __init__(self, slots: NDArray[np.void]) -> None:
        """slots  [slots] of a pool"""
        self._states = slots["state"]
        # A slot begins with its state and its session id.
        self._looked_at = slots.view(np.int64).reshape(len(slots), -1)[:, :2]
        self._seen = b""

    def look(self) -> bool:
        """Read all slots; returns whether any changed since the last look (first look: True)."""
        before = self._seen
        self._seen = self._looked_at.tobytes()
        return before != self._seen

    def opened(
        self, slots: Sequence[View], known: Container[int]
    ) -> Iterator[tuple[View, int, SlotRequest]]:
        """Slot, session id and request of every open slot with an index not in `known`. A slot
        that cannot be read yet is read again next time."""
        for index in (self._states == SlotState.OPEN).nonzero()[0].tolist():
            if index in known:
                continue
            slot = slots[index]
            opened = slot.opened()
            if opened is None:
                self.forget()
                continue
            session_id, request = opened
            yield slot, session_id, request

    def forget(self) -> None:
        """Make the next `look` return True, because a slot could not be read yet."""
        self._seen = b""

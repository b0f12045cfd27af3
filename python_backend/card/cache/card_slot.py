"""The view that `card` has of a slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from card.cache.bell import Bell
from card.cache.layout import SlotState
from card.cache.likeliest import unpacked
from card.cache.record import Record
from card.cache.request import SlotRequest, write_request
from card.cache.slot import SlotView
from card.cache.steps import Step, read_steps


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

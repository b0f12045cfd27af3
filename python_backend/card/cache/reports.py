"""The target's reports beside tokens: its steps, the likeliest ids of a position, hidden states.

The target writes a step before it commits the step's tokens; `card` reads the latest steps. A new
step overwrites the oldest, so a slow reader misses some. A likeliest id takes one word: the id in
the upper half, the log-probability in the lower half.

Hidden states lie in a ring of the slot, for a draft that reads them. A place of the ring holds the
states of one token, in bfloat16, and the token at position p has place p modulo the number of
places. The target announces how far it writes, stores the states, and then says how far they are
complete. A reader copies, looks at the announced end, and leaves out what the target may have
overwritten meanwhile. When the ring begins anew (for another session, or behind a gap), the turn is
odd, and changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from card.cache.layout import MAX_ROWS, STEPS_KEPT
from card.cache.request import Record
from card.cache.tree import Candidates
from card.sampling import Likeliest

NO_ID = -1
"""Fills the words of a position that has fewer ids."""


def packed(found: Likeliest, count: int) -> NDArray[np.int64]:
    """[count] int64 words."""
    words = np.full(count, NO_ID, np.int64)
    ids = found.ids[:count]
    low = found.log_probabilities[:count].astype(np.float32).view(np.uint32).astype(np.int64)
    words[: len(ids)] = (ids << 32) | low
    return words


def unpacked(words: NDArray[np.int64]) -> list[tuple[int, float]]:
    """Ids and log-probabilities of one position's words, likeliest first."""
    known = words[words != NO_ID]
    low = (known & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
    return list(zip((known >> 32).tolist(), low.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of the target over one session.

    candidates    the tokens that it verified
    drafted       number of the first candidates that come from the draft's tree; the others are
                  n-grams
    accepted      number of the first committed tokens that were candidates
    committed     tokens that it committed
    behind        number of output tokens before this step
    queried_ns    time of the query, on the monotonic clock
    committed_ns  time of the commit, on the monotonic clock
    """

    candidates: Candidates
    drafted: int
    accepted: int
    committed: int
    behind: int = 0
    queried_ns: int = 0
    committed_ns: int = 0


def write_step(record: Record, step: Step) -> None:
    """Store a step: the record first, the count last."""
    number = record["steps_written"]
    place = number % STEPS_KEPT
    tokens, parents = step.candidates.tokens[:MAX_ROWS], step.candidates.parents[:MAX_ROWS]
    record["step_numbers"][place] = (
        len(tokens),
        step.drafted,
        step.accepted,
        step.committed,
        step.behind,
        step.queried_ns,
        step.committed_ns,
    )
    record["step_token"][place, : len(tokens)] = tokens
    record["step_parent"][place, : len(parents)] = parents
    record["steps_written"] = number + 1


def read_steps(record: Record, first: int) -> tuple[list[Step], int]:
    """The steps from number `first` on that are still kept, and the number of the next one."""
    written = int(record["steps_written"])
    oldest = max(first, written - STEPS_KEPT + 1)
    found = [_read(record, number % STEPS_KEPT) for number in range(oldest, written)]
    # The target may have overwritten the first of these while they were read.
    lost = int(record["steps_written"]) - STEPS_KEPT + 1 - oldest
    return found[max(lost, 0) :], written


def _read(record: Record, place: int) -> Step:
    count, *numbers = record["step_numbers"][place].tolist()
    return Step(
        Candidates(
            record["step_token"][place, :count].tolist(),
            record["step_parent"][place, :count].tolist(),
        ),
        *numbers,
    )


States = NDArray[np.uint16]
"""[tokens, numbers] hidden states; NumPy has no bfloat16, so these are its bits."""

NO_STATES: States = np.zeros((0, 0), np.uint16)


def begin_states(record: Record, session_id: int, first: int) -> None:
    """Empty the ring; the next states are those of position `first`. The slot has a ring."""
    turn = record["states_turn"] | 1  # also odd if a kill interrupted the last beginning
    record["states_turn"] = turn
    record["states_session_id"] = session_id
    for name in ("states_first", "states_claimed", "states_end"):
        record[name] = first
    record["states_turn"] = turn + 1


def write_states(record: Record, first: int, states: States) -> None:
    """Store the states of the tokens from position `first` on. The slot has a ring.

    states  at most as many tokens as the ring has places
    """
    if first != record["states_end"]:
        begin_states(record, record["states_session_id"], first)
    ring, end = record["states"].view(np.uint16), first + len(states)
    record["states_claimed"] = end
    ring[np.arange(first, end) % len(ring), : states.shape[1]] = states
    record["states_end"] = end


def read_states(record: Record, session_id: int, start: int) -> tuple[int, States]:
    """The first position and a copy of the states of the session's tokens from position `start` on,
    as far as the ring still holds them; there may be none."""
    if "states" not in record:
        return start, NO_STATES
    turn = record["states_turn"]
    if turn & 1 or record["states_session_id"] != session_id:
        return start, NO_STATES
    ring, end = record["states"].view(np.uint16), record["states_end"]
    first = max(start, record["states_first"], end - len(ring), 0)
    found: States = ring[np.arange(first, max(first, end)) % len(ring)]
    lost = max(0, record["states_claimed"] - len(ring) - first)
    if record["states_turn"] != turn:
        return start, NO_STATES
    return first + lost, found[lost:]

"""The target's hidden states, in a ring of the slot, for a draft that reads them.

A place of the ring holds the states of one token, in bfloat16, and the token at position p has
place p modulo the number of places. The target announces how far it writes, stores the states, and
then says how far they are complete. A reader copies, looks at the announced end, and leaves out
what the target may have overwritten meanwhile. When the ring begins anew (for another session, or
behind a gap), the turn is odd, and changes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from card.cache.header import Record

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

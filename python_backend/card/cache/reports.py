"""The target's reports beside tokens: its steps, and the likeliest ids of a position.

The target writes a step before it commits the step's tokens; `card` reads the latest steps. A new
step overwrites the oldest, so a slow reader misses some. A likeliest id takes one word: the id in
the upper half, the log-probability in the lower half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from card.cache.header import Record
from card.cache.layout import MAX_ROWS, STEPS_KEPT
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

"""Whether a target may use more threads while nobody else computes, and whether it should."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from card.engines.calibration.interface import ConfigurableEngine
from card.engines.calibration.readings import (
    CHECKED_TOKENS,
    branchings,
    equal_bits,
    random_tokens,
    read,
    read_far,
    read_in_branches,
)
from card.engines.calibration.timing import settled_ms
from card.engines.interface import SequenceTokens

_ALONE_ROUNDS = 3
_ALONE_TRIALS = 3
"""Until they save time: who is disturbed for a moment here would go without while it serves."""
_ALONE_BUDGET_S = 1.5
"""No trial begins later; the first is always made."""
_WORTHWHILE_ALONE = 0.95
"""Share of their time that passes must at most take on more threads for these to be used."""
_BEARABLE_ALONE = 1.03
"""And that no kind of them may exceed."""


def check_alone(engine: ConfigurableEngine) -> bool:
    """Whether passes have the same bits on `threads_alone` threads: of one session and of two, of
    few rows and of many, with branches, and far behind the beginning. The engine must have 2
    sessions, and 2 branches unless its attention is paged."""
    if not engine.options.threads_alone:
        return True
    tokens = random_tokens(engine, CHECKED_TOKENS)
    found: dict[bool, list[NDArray[np.float32]]] = {}
    for engine.alone in (False, True):
        found[engine.alone] = [
            *(
                read(engine, tokens, chunks, shared=shared)
                for chunks, shared in (([64, 8], False), ([1, 2, 3, 4, 8, 16, 32, 6], True))
            ),
            *(read_in_branches(engine, tokens, shared=shared) for shared in branchings(engine)),
            *read_far(engine, 64, [1, 4, 1, 6, 4]),
        ]
    engine.alone = False
    return all(equal_bits(one, other) for one, other in zip(*found.values(), strict=True))


def _saves_time(engine: ConfigurableEngine, batches: list[list[SequenceTokens]]) -> bool:
    """Whether passes of each batch save time on `threads_alone` threads, measured now."""
    taken: dict[tuple[int, bool], list[float]] = {}
    for _ in range(_ALONE_ROUNDS):
        for number, batch in enumerate(batches):
            for engine.alone in (False, True):
                _, passes = settled_ms(engine, batch)
                taken.setdefault((number, engine.alone), []).extend(passes)
    engine.alone = False
    median = {key: statistics.median(ms) for key, ms in taken.items()}
    shares = [median[number, True] / median[number, False] for number in range(len(batches))]
    return max(shares) <= _BEARABLE_ALONE and statistics.mean(shares) <= _WORTHWHILE_ALONE


def is_faster_alone(
    engine: ConfigurableEngine,
    saves_time: Callable[[ConfigurableEngine, list[list[SequenceTokens]]], bool] = _saves_time,
) -> bool:
    """Whether `threads_alone` threads are worth it: neither passes of one session nor those of
    several, with a row each, take longer, and together they take less: `saves_time` is one trial.
    The engine must have 2 sessions."""
    if not engine.options.threads_alone:
        return False
    sessions = [engine.open_session() for _ in range(engine.options.examined_sessions)]
    token = random_tokens(engine, 1)
    batches = [
        [SequenceTokens(session, token) for session in few] for few in (sessions[:1], sessions)
    ]
    ends_s = time.monotonic() + _ALONE_BUDGET_S
    faster = any(
        saves_time(engine, batches)
        for trial in range(_ALONE_TRIALS)
        if trial == 0 or time.monotonic() < ends_s
    )
    for session in sessions:
        engine.close_session(session)
    return faster

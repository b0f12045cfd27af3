"""Whether a target may use more threads while nobody else computes.

That they save time is not measured: on a machine that was busy at that moment they seemed not to,
and the target kept to few for good (benchmarks/NOTES.md).
"""

from __future__ import annotations

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

"""Whether a target may use more threads while nobody else computes.

That they save time is not measured: on a machine that was busy at that moment they seemed not to,
and the target kept to few for good (benchmarks/NOTES.md).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from card.engines.calibration.interface import ConfigurableEngine
from card.engines.calibration.readings import CHECKED_TOKENS, Reader, equal_bits, random_tokens


def check_alone(engine: ConfigurableEngine) -> bool:
    """Whether passes have the same bits on `threads_alone` threads: of one session and of two, of
    few rows and of many, with branches, and far behind the beginning. The engine must have 2
    sessions."""
    if not engine.options.threads_alone:
        return True
    pairs = zip(_readings(Reader(engine)), _readings(Reader(engine, alone=True)), strict=True)
    return all(equal_bits(one, other) for one, other in pairs)


def _readings(reader: Reader) -> list[NDArray[np.float32]]:
    tokens = random_tokens(reader.engine, CHECKED_TOKENS)
    return [
        reader.text(tokens, [64, 8]),
        reader.text(tokens, [1, 2, 3, 4, 8, 16, 32, 6], shared=True),
        *reader.in_branches(tokens),
        *reader.far(64, [1, 4, 1, 6, 4]),
    ]

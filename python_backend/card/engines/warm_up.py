"""The largest passes first: an engine keeps the memory of its largest pass, and takes it at load.

Otherwise a process grows in steps, whenever more sessions or longer texts than ever before share a
pass, and holds more in the end: smaller buffers that were outgrown leave holes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from card.engines.calibration import ConfigurableEngine, drop
from card.engines.interface import Ranking, SequenceTokens
from card.engines.layout import SHORT
from card.engines.options import DRAFT_ROWS

_MOST_PREFILL_S = 0.3
"""To read a long context with a large model takes longer than the memory is worth."""


def run_largest_passes(
    engine: ConfigurableEngine, chunk: int, clock: Callable[[], float] = time.monotonic
) -> None:
    """One session's whole context in prefill chunks of so many tokens (as far as some seconds
    reach; paged attention takes no more memory far behind the beginning), the most rows that all
    sessions may have in one batch and in one pass, and a pass of each number of rows with a decoder
    of its own. `clock` gives seconds."""
    options = engine.options
    chunk = min(chunk, engine.most_rows)
    sessions = [engine.open_session() for _ in range(options.sessions)]
    longest = sessions[0]
    behind = 0 if options.paged else max(1, engine.context - max((SHORT, *options.graph_rows)))
    began_s = clock()
    for start in range(0, behind, chunk):
        if clock() - began_s > _MOST_PREFILL_S:
            break
        rows = min(chunk, behind - start)
        engine.forward([_rows(engine, longest, rows, logits=1)])
        engine.commit_kv(longest, range(rows))
    ranked = max(1, DRAFT_ROWS // len(sessions)) if options.grows_trees else None
    # A draft gives its only session all rows that it has.
    most = min(max(SHORT, ranked or 0), engine.most_rows)
    for others in sorted({SHORT, _beside_one(engine, len(sessions))}, reverse=True):
        batch = [_rows(engine, session, others, ranked) for session in sessions[1:]]
        _forward(engine, [_rows(engine, longest, most, ranked), *batch])
    for count in options.graph_rows:
        _forward(engine, [_rows(engine, longest, count)])
    for session in sessions:
        engine.close_session(session)


def _beside_one(engine: ConfigurableEngine, sessions: int) -> int:
    """Rows that each of the others may have at most, if one of so many sessions has many and still
    all share one pass: all are attended to over the rows and places of the longest."""
    room = engine.most_rows - SHORT
    return max(1, min(SHORT, room // max(1, sessions - 1)))


def _forward(engine: ConfigurableEngine, batch: list[SequenceTokens]) -> None:
    engine.forward(batch)
    drop(engine, batch)


def _rows(
    engine: ConfigurableEngine, session: int, count: int, logits: int | None = None
) -> SequenceTokens:
    """Rows that ask for as much as any: of a draft, the likeliest ids with noise.

    logits  how many of them at most; None: all
    """
    rows = SequenceTokens(
        session, [0] * count, logits=None if logits is None else min(count, logits)
    )
    if engine.options.grows_trees:
        noise = np.zeros(len(engine.ranked_ids), np.float32)
        rows.ranking = Ranking(1, 1.0, [noise] * rows.wanted)
    return rows

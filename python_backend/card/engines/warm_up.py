"""Runs the largest passes at load, so that an engine takes its memory then.

Otherwise a process grows in steps, whenever more sessions or longer texts than before share a pass.
It also holds more memory in the end, because outgrown smaller buffers leave holes.
"""

from __future__ import annotations

import numpy as np

from card.engines.calibration import ConfigurableEngine, drop
from card.engines.interface import Ranking, SequenceTokens
from card.engines.options import DRAFT_ROWS
from card.engines.sessions import SHORT


def run_largest_passes(engine: ConfigurableEngine) -> None:
    """Run passes with the most rows that sessions may have in one pass, few sessions with many rows
    and all with few, and a pass of each number of rows with a decoder of its own."""
    options = engine.options
    longest, *others = (engine.open_session() for _ in range(options.sessions))
    ranked = max(1, DRAFT_ROWS // options.sessions) if options.grows_trees else None
    # A draft with one session gives it all rows.
    most = min(max(SHORT, ranked or 0), engine.most_rows)
    for each in sorted({SHORT, _beside_one(engine, options.sessions)}, reverse=True):
        fitting = others[: engine.most_rows // each]
        batch = [_rows(engine, session, each, ranked) for session in fitting]
        _forward(engine, [_rows(engine, longest, most, ranked), *batch])
    for count in options.graph_rows:
        _forward(engine, [_rows(engine, longest, count)])
    for session in (longest, *others):
        engine.close_session(session)


def _beside_one(engine: ConfigurableEngine, sessions: int) -> int:
    """Most rows of each other session if one of `sessions` sessions has many rows and all share one
    pass: attention covers the rows and places of the longest session for all of them."""
    room = engine.most_rows - SHORT
    return max(1, min(SHORT, room // max(1, sessions - 1)))


def _forward(engine: ConfigurableEngine, batch: list[SequenceTokens]) -> None:
    engine.forward(batch, alone=True)
    drop(engine, batch)


def _rows(
    engine: ConfigurableEngine, session: int, count: int, logits: int | None = None
) -> SequenceTokens:
    """Rows with the largest results: for a draft, the likeliest ids with noise.

    logits  most rows with logits; None: all
    """
    rows = SequenceTokens(
        session, [0] * count, logits=None if logits is None else min(count, logits)
    )
    if engine.options.grows_trees:
        noise = np.zeros(len(engine.ranked_ids), np.float32)
        rows.ranking = Ranking(1, 1.0, [noise] * rows.wanted)
    return rows

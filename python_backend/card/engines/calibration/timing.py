"""How long passes take, by their rows."""

from __future__ import annotations

import statistics
import time

from card.engines.calibration.interface import ConfigurableEngine
from card.engines.calibration.readings import drop, random_tokens
from card.engines.interface import Engine, SequenceTokens
from card.engines.row_costs import RowCosts

_COST_CONTEXT = 256
_COST_ROUNDS = 4
_COST_BUDGET_S = 1.0
"""No round of measuring begins later; the first is always made."""
_SETTLING_PASSES = 3
_SETTLING_MS = 25.0
"""So many passes, or for so long, until the weights lie as near as they come to lie: a cache that
held those of other decoders, or threads, is not filled by one pass."""


def measure_row_costs(engine: ConfigurableEngine) -> RowCosts:
    """Median milliseconds of a one-session pass by rows, at a middling context length, and what
    share of its time a pass of one row takes while nobody else computes."""
    session = engine.open_session()
    context = min(_COST_CONTEXT, engine.context - max(engine.costed_rows) - 1)
    prompt = random_tokens(engine, max(1, context))
    for start in range(0, len(prompt), 64):
        chunk = prompt[start : start + 64]
        engine.forward([SequenceTokens(session, chunk, logits=0 if start else 1)])
        engine.commit_kv(session, range(len(chunk)))
    costs: dict[int, list[float]] = {rows: [] for rows in engine.costed_rows}
    alone: list[float] = []
    # Round after round over all row counts, so that a disturbance spreads over the whole curve.
    ends_s = time.monotonic() + _COST_BUDGET_S
    for done in range(_COST_ROUNDS):
        if done and time.monotonic() > ends_s:
            break
        if engine.options.threads_alone:
            alone += settled_ms(engine, [SequenceTokens(session, prompt[:1])], alone=True)
        for rows, taken in costs.items():
            taken += settled_ms(engine, [SequenceTokens(session, prompt[:1] * rows)])
    engine.close_session(session)
    pass_ms = {rows: statistics.median(taken) for rows, taken in costs.items()}
    share = min(1.0, statistics.median(alone) / pass_ms[1]) if alone else 1.0
    return RowCosts(pass_ms, share)


def settled_ms(engine: Engine, batch: list[SequenceTokens], *, alone: bool = False) -> list[float]:
    """What two of these passes take once they have settled."""
    settling: list[float] = []
    while len(settling) < _SETTLING_PASSES and sum(settling) < _SETTLING_MS:
        settling.append(_batch_ms(engine, batch, alone=alone))
    return [_batch_ms(engine, batch, alone=alone) for _ in range(2)]


def _batch_ms(engine: Engine, batch: list[SequenceTokens], *, alone: bool) -> float:
    started = time.perf_counter()
    engine.forward(batch, alone=alone)
    taken = (time.perf_counter() - started) * 1e3
    drop(engine, batch)
    return taken

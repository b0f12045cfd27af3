"""Calibrates an engine at load: checks that rows are independent, bit by bit, and measures the cost
of passes.

With independent rows a text is the same with and without candidates. `readings` reads one text in
many ways. This module compares the bits, takes the cheapest variant of the engine with independent
rows, and measures its passes.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from card.engines.interface import Engine, EngineError, RowCosts, SequenceTokens, pass_cost_ms
from card.engines.options import EngineOptions
from card.engines.readings import (
    CHECKED_TOKENS,
    ReadEngine,
    Reader,
    drop,
    equal_bits,
    random_tokens,
)

log = logging.getLogger(__name__)

_ALONE = (*[1] * 6, 24, *[1] * 4, 28, *[1] * 10)
"""Passes of one row at the beginning and around the borders of blocks, at 32 and 64. A pass of a
large model takes a tenth of a second, and one for each of the rows would take half of the check."""
_CHAINS = (2, 3, 5, 8, 16, 32)
_SIDE_BY_SIDE = (1, 1, 6)
_COST_CONTEXT = 256
_BRIEF_S = 1.0
"""Most seconds of reading the context, and of the first round of measuring. Small models take
less."""
_COST_ROUNDS = 4
_FIRST_COSTED = (1, 8, 32)
"""Numbers of rows to measure first. Where passes are slow only the first two may be measured: from
one row and two, which differ little, the costs of many rows would be guessed."""
_COST_BUDGET_S = 1.0
"""No round of measuring begins after this time; the first round always runs."""
_SETTLING_PASSES = 3
_SETTLING_MS = 25.0
"""Passes, or milliseconds of passes, before a measurement. They fill the processor's caches: one
pass does not fill a cache that held the weights of other decoders or threads."""


class CostedEngine(ReadEngine, Protocol):
    """An engine that names the passes to be measured."""

    @property
    def costed_rows(self) -> Sequence[int]:
        """Numbers of rows to measure; passes of other numbers are padded to these, or cost about
        the same."""


class ConfigurableEngine(CostedEngine, Protocol):
    """An engine that can lay out its buffers again around the same weights."""

    row_invariant: bool

    @property
    def awaits_decoders(self) -> bool:
        """Whether faster decoders will soon replace the present ones."""

    @property
    def variants(self) -> Sequence[EngineOptions]:
        """Options to try, cheapest first, until rows are independent."""

    def know_costs(self, costs: RowCosts) -> None: ...

    @property
    def examination_s(self) -> float:
        """Most seconds of the check of its rows."""

    def reconfigured(self, options: EngineOptions) -> Self: ...


AnyEngine = TypeVar("AnyEngine", bound=ConfigurableEngine)


# --- the same bits --------------------------------------------------------------------------------


def check_row_invariance(engine: ConfigurableEngine) -> bool:
    """Whether one text's logits are the same bits for every way to divide its rows among passes,
    on `threads` threads and on `threads_alone`.

    Compares one row at a time with prefill chunks, chains of several lengths, another session's
    place, a pass shared with a second session, a subtree with a wrong path, rows far behind the
    beginning, and such rows beside rows near the beginning. Chunks and chains are read on either
    number of threads, the other cases each on one of them, in turn. So every case compares threads
    too, and a large model reads 650 rows.

    After `examination_s` the comparisons made so far decide; the log says how many. The engine must
    have 2 sessions. Raises `EngineError` if logits are not finite.
    """
    until = time.monotonic() + engine.examination_s
    for made, same in enumerate(_comparisons(Reader(engine), Reader(engine, alone=True)), 1):
        if not same:
            return False
        if time.monotonic() > until:
            log.warning("rows were compared as long as allowed: the same in all %d cases", made)
            break
    return True


def _comparisons(usual: Reader, alone: Reader) -> Iterator[bool]:
    """Yields for each case whether the bits are the same."""
    tokens = random_tokens(usual.engine, CHECKED_TOKENS)
    few = tokens[:8]
    # The first case already shows too little padding.
    by_row = alone.text(few, [1] * 8)
    yield equal_bits(alone.text(few, [8]), by_row)
    expected = usual.text(tokens, _ALONE)
    if not np.isfinite(expected).all():
        raise EngineError("the model's logits are not finite; is its checkpoint damaged?")
    yield equal_bits(by_row, expected[: len(few)])
    for reader, chains in ((alone, _CHAINS), (usual, _CHAINS[:-1])):
        found = reader.text(tokens[: sum(chains)], chains, first=True)
        yield equal_bits(found, expected[: len(found)])
    for reader, counts in ((alone, (1, 1, 3, 3, 8, 16, 32)), (usual, (2, 4, 6, 12))):
        found = reader.text(tokens[: sum(counts)], counts, shared=True)
        yield equal_bits(found, expected[: len(found)])
    if usual.engine.options.threads_alone:
        yield equal_bits(usual.text(tokens[:64], [64]), expected[:64])
    if usual.engine.options.paths > 1:
        yield equal_bits(usual.beside_wrong_paths(tokens, shared=False), expected)
        yield equal_bits(alone.beside_wrong_paths(tokens, shared=True), expected)
    yield _same_far_rows(usual, alone, expected)


def _same_far_rows(usual: Reader, alone: Reader, near_alone: NDArray[np.float32]) -> bool:
    """Whether rows far behind the beginning and rows near it may share passes, and rows of one
    session.

    near_alone  logits of the first tokens, one row in each pass
    """
    engine = usual.engine
    far, last, begun = alone.up_to_the_last(min(64, engine.most_rows))
    same = [equal_bits(begun, near_alone[: len(begun)])]
    near, first = engine.open_session(), random_tokens(engine, len(last))
    expected = alone.dropped_rows(far, last)
    same += [
        equal_bits(np.stack(usual.dropped_rows(far, last)), np.stack(expected)),
        *(equal_bits(by.dropped_rows(far, last[:1])[0], expected[0]) for by in (usual, alone)),
    ]
    found: dict[int, list[NDArray[np.float32]]] = {far: [], near: []}
    for reader, count in zip((usual, alone, usual), _SIDE_BY_SIDE, strict=True):
        at = slice(len(found[far]), len(found[far]) + count)
        if not last[at]:  # the context is short
            break
        batch = [SequenceTokens(far, last[at]), SequenceTokens(near, first[at])]
        found_logits = engine.forward(batch, alone=reader.alone)
        for rows, logits in zip(batch, found_logits, strict=True):
            found[rows.session] += [logits.row(row) for row in range(len(rows.tokens))]
            engine.commit_kv(rows.session, range(len(rows.tokens)))
    engine.close_session(far)
    engine.close_session(near)
    return (
        all(same)
        and equal_bits(np.stack(found[far]), np.stack(expected))
        and equal_bits(np.stack(found[near]), near_alone[: len(first)])
    )


def same_bits(one: ConfigurableEngine, other: ConfigurableEngine) -> bool:
    """Whether both engines compute the same bits; `other` has decoders for its `graph_rows`.

    Compares passes that fill each of these decoders and passes that do not, of one session and of
    two, on each number of threads. Both engines must have 2 sessions.
    """
    counts = list(_fitting_counts(other.options.graph_rows, one.context))
    tokens = random_tokens(one, sum(counts))
    same = True
    for shared in (False, True):
        expected = Reader(one).text(tokens, counts, shared=shared)
        for alone in {False, bool(other.options.threads_alone)}:
            found = Reader(other, alone).text(tokens, counts, shared=shared)
            same = same and equal_bits(found, expected)
    return same


def _fitting_counts(sizes: Sequence[int], most: int) -> Iterator[int]:
    """Numbers of rows that fill decoders of these sizes, with and without another session's row,
    within `most` positions."""
    for count in (count for rows in sorted(sizes) for count in (rows, rows - 1)):
        if 0 < count <= most:
            most -= count
            yield count


# --- the cheapest way in which rows are independent -----------------------------------------------


def make_row_invariant(
    engine: AnyEngine, check: Callable[[ConfigurableEngine], bool] = check_row_invariance
) -> AnyEngine:
    """The cheapest variant of the engine with independent rows, marked `row_invariant`; without
    `threads_alone` if these change a bit.

    This function does not measure whether more threads save time: on a machine that was busy at
    that moment they seemed not to, and the target then used few threads for good
    (benchmarks/NOTES.md). If no variant has independent rows, returns the engine itself with
    `row_invariant` False.
    """
    trial = engine
    for variant in engine.variants:
        for options in dict.fromkeys((variant, replace(variant, threads_alone=0))):
            # Made from the trial before, to reuse what that trial had to load.
            trial = trial.reconfigured(
                replace(options, sessions=options.examined_sessions, kept_tokens=0)
            )
            if check(trial):
                return known_invariant(trial, options)
    return engine


def known_invariant(engine: AnyEngine, options: EngineOptions) -> AnyEngine:
    """The engine with options that are known to make its rows independent, marked
    `row_invariant`."""
    chosen = engine.reconfigured(options)
    chosen.row_invariant = True
    return chosen


# --- what passes cost -----------------------------------------------------------------------------


def measure_row_costs(engine: CostedEngine) -> RowCosts:
    """Median milliseconds of a one-session pass by rows, at a medium context length, and the time
    of a one-row pass while no other model computes, as a share of its time otherwise.

    Where passes are slow, the context is shorter, and the costs of most numbers of rows follow from
    those of a few.
    """
    session = engine.open_session()
    reads_until_s = time.monotonic() + _BRIEF_S
    context = min(_COST_CONTEXT, engine.context - max(engine.costed_rows) - 1)
    prompt = random_tokens(engine, max(1, context))
    for start in range(0, len(prompt), 64):
        chunk = prompt[start : start + 64]
        engine.forward([SequenceTokens(session, chunk, logits=0 if start else 1)], alone=True)
        engine.commit_kv(session, range(len(chunk)))
        if time.monotonic() > reads_until_s:
            break
    in_order = sorted(engine.costed_rows, key=lambda rows: (rows not in _FIRST_COSTED, rows))
    costs: dict[int, list[float]] = {rows: [] for rows in in_order}
    alone: list[float] = []
    # Each round measures all numbers of rows, so that a disturbance spreads over the whole curve.
    began_s = time.monotonic()
    for done in range(_COST_ROUNDS):
        if done and time.monotonic() > began_s + _COST_BUDGET_S:
            break
        if engine.options.threads_alone:
            alone += settled_ms(engine, [SequenceTokens(session, prompt[:1])], alone=True)
        for rows, taken in costs.items():
            known = sum(map(bool, costs.values()))
            if known > 1 and not taken and time.monotonic() > began_s + _BRIEF_S:
                break
            taken += settled_ms(engine, [SequenceTokens(session, prompt[:1] * rows)])
    engine.close_session(session)
    medians = {rows: statistics.median(taken) for rows, taken in costs.items() if taken}
    pass_ms = {rows: pass_cost_ms(medians, rows) for rows in engine.costed_rows}
    share = min(1.0, statistics.median(alone) / pass_ms[1]) if alone else 1.0
    return RowCosts(pass_ms, share)


def settled_ms(engine: Engine, batch: list[SequenceTokens], *, alone: bool = False) -> list[float]:
    """Milliseconds of two of these passes, after the passes that fill the caches."""
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

"""Whether rows of one pass are independent of each other, bit by bit."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from card.engines.calibration.interface import ConfigurableEngine
from card.engines.calibration.readings import (
    CHECKED_TOKENS,
    Reader,
    equal_bits,
    random_tokens,
)
from card.engines.interface import EngineError, SequenceTokens

log = logging.getLogger(__name__)

_SIDE_BY_SIDE = (1, 1, 6)


def check_row_invariance(engine: ConfigurableEngine) -> bool:
    """Whether one text's logits are the same bits however its rows are put into passes.

    Compares one row at a time with prefill chunks, chains of several lengths, another session's
    place, a pass shared with a second session, a subtree's side branch, rows far behind the
    beginning, and such rows beside others near it, in this order. After `examination_s` the
    comparisons that were made decide: the log says how many. Passes have as many threads as they
    ever may; that these do not matter is checked by `check_alone`. The engine must have 2 sessions.
    Raises `EngineError` if logits are not finite.
    """
    until = time.monotonic() + engine.examination_s
    for made, same in enumerate(_comparisons(Reader(engine, alone=True)), 1):
        if not same:
            return False
        if time.monotonic() > until:
            log.warning("rows were compared as long as allowed: the same in all %d cases", made)
            break
    return True


def _comparisons(reader: Reader) -> Iterator[bool]:
    """Whether bits are the same in one case after another."""
    tokens = random_tokens(reader.engine, CHECKED_TOKENS)
    few = tokens[:8]
    # Too little padding shows at once.
    yield equal_bits(reader.text(few, [1] * 8), reader.text(few, [8]))
    expected = reader.text(tokens, [1] * len(tokens))
    if not np.isfinite(expected).all():
        raise EngineError("the model's logits are not finite; is its checkpoint damaged?")
    for chunks in ([64, 8], [2, 3, 5, 8, 16, 32, 6]):
        yield equal_bits(reader.text(tokens, chunks), expected)
    yield equal_bits(reader.text(tokens, [40, 32], first=True), expected)
    yield equal_bits(reader.text(tokens, [1] * 4 + [3] * 4 + [8] * 7, shared=True), expected)
    for found in reader.in_branches(tokens):
        yield equal_bits(found, expected)
    yield _same_far_rows(reader, expected)


def _same_far_rows(reader: Reader, near_alone: NDArray[np.float32]) -> bool:
    """Whether rows far behind the beginning and rows near it may share passes, and rows of one
    session.

    near_alone  logits of the first tokens, one row in each pass
    """
    engine = reader.engine
    far, last = reader.up_to_the_last(min(100, engine.most_rows))
    near, first = engine.open_session(), random_tokens(engine, len(last))
    far_alone = reader.dropped_rows(far, last)
    (alone,) = reader.dropped_rows(far, last[:1])
    found: dict[int, list[NDArray[np.float32]]] = {far: [], near: []}
    for count in _SIDE_BY_SIDE:
        at = slice(len(found[far]), len(found[far]) + count)
        if not last[at]:  # of a short context
            break
        batch = [SequenceTokens(far, last[at]), SequenceTokens(near, first[at])]
        found_logits = engine.forward(batch, alone=reader.alone)
        for rows, logits in zip(batch, found_logits, strict=True):
            found[rows.session] += [logits.row(row) for row in range(len(rows.tokens))]
            engine.commit_kv(rows.session, range(len(rows.tokens)))
    engine.close_session(far)
    engine.close_session(near)
    return (
        equal_bits(alone, far_alone[0])
        and equal_bits(np.stack(found[far]), np.stack(far_alone))
        and equal_bits(np.stack(found[near]), near_alone[: len(first)])
    )


def same_bits(one: ConfigurableEngine, other: ConfigurableEngine) -> bool:
    """Whether both compute the same bits, where `other` has decoders for its `graph_rows`: in
    passes that fill each of these and in passes that do not, of one session and shared with a
    second, on each number of threads. Both must have 2 sessions."""
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
    """Rows of passes that fill decoders of these sizes, with another session's row or without, as
    far as so many positions reach."""
    for count in (count for rows in sorted(sizes) for count in (rows, rows - 1)):
        if 0 < count <= most:
            most -= count
            yield count

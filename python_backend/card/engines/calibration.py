"""What an engine finds out about itself at load: row invariance and what a row costs."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from card.engines.interface import FOLLOWS_PREFIX, Engine, EngineError, SequenceTokens
from card.engines.options import EngineOptions
from card.engines.row_costs import RowCosts

log = logging.getLogger(__name__)

_CHECKED_TOKENS = 72
"""More than one block of positions (64 in torch)."""
_FAR_TOKENS = 272
"""Where a row sees several blocks of positions, which a sum may take in another order."""
_FAR_ROWS = 8
_SIDE_BY_SIDE = (1, 1, 6)
_COST_CONTEXT = 256
_COST_ROUNDS = 4
_COST_BUDGET_S = 1.0
"""No round of measuring begins later; the first is always made."""
_SETTLING_PASSES = 3
_SETTLING_MS = 25.0
"""So many passes, or for so long, until the weights lie as near as they come to lie: a cache that
held those of other decoders, or threads, is not filled by one pass."""
_ALONE_ROUNDS = 3
_ALONE_TRIALS = 3
"""Until they save time: who is disturbed for a moment here would go without while it serves."""
_ALONE_BUDGET_S = 1.5
"""No trial begins later; the first is always made."""
_WORTHWHILE_ALONE = 0.95
"""Share of their time that passes must at most take on more threads for these to be used."""
_BEARABLE_ALONE = 1.03
"""And that no kind of them may exceed."""


class ConfigurableEngine(Engine, Protocol):
    """An engine whose buffers can be laid out anew around the same weights."""

    row_invariant: bool

    @property
    def variants(self) -> Sequence[EngineOptions]:
        """What to try, cheapest first, until rows no longer influence each other."""

    def know_costs(self, costs: RowCosts) -> None: ...

    @property
    def awaits_decoders(self) -> bool:
        """Whether others, which compute sooner, take the place of its decoders soon."""

    @property
    def options(self) -> EngineOptions: ...

    @property
    def costed_rows(self) -> Sequence[int]:
        """Rows of passes to measure: others are padded to these, or cost about as much."""

    @property
    def examination_s(self) -> float:
        """Seconds for the check of its rows."""

    def reconfigured(self, options: EngineOptions) -> Self: ...


AnyEngine = TypeVar("AnyEngine", bound=ConfigurableEngine)


def make_row_invariant(engine: AnyEngine) -> AnyEngine:
    """The cheapest variant of the engine whose rows are independent, marked accordingly; with
    `threads_alone` if these change no bit and save time.

    If none is, the engine comes back as it was with `row_invariant` False.
    """
    trial = engine
    for options in engine.variants:
        branches = options.branches if options.paged else max(2, options.branches)
        # Of the trial before: what that had to load anew may serve this one as well.
        trial = trial.reconfigured(
            replace(options, sessions=options.examined_sessions, kept_tokens=0, branches=branches)
        )
        trial.alone = bool(options.threads_alone)  # as many threads as can; that they do not
        independent = check_row_invariance(trial)  # matter is checked next
        trial.alone = False
        if independent:
            if options.threads_alone and not (check_alone(trial) and is_faster_alone(trial)):
                options = replace(options, threads_alone=0)
            return known_invariant(trial, options)
    return engine


def known_invariant(engine: AnyEngine, options: EngineOptions) -> AnyEngine:
    """The engine with options that are known to make its rows independent, marked so."""
    chosen = engine.reconfigured(options)
    chosen.row_invariant = True
    return chosen


def check_row_invariance(engine: ConfigurableEngine) -> bool:
    """Whether one text's logits are the same bits however its rows are put into passes.

    Compares one row at a time with prefill chunks, chains of several lengths, another session's
    place, a pass shared with a second session, a subtree's side branch, rows far behind the
    beginning, and such rows beside others near it, in this order. After `examination_s` the
    comparisons that were made decide: the log says how many. The engine must have 2 sessions, and
    2 branches unless its attention is paged. Raises `EngineError` if logits are not finite.
    """
    until = time.monotonic() + engine.examination_s
    for made, same in enumerate(_comparisons(engine), 1):
        if not same:
            return False
        if time.monotonic() > until:
            log.warning("rows were compared as long as allowed: the same in all %d cases", made)
            break
    return True


def _comparisons(engine: ConfigurableEngine) -> Iterator[bool]:
    """Whether bits are the same in one case after another."""
    tokens = _tokens(engine, _CHECKED_TOKENS)
    few = tokens[:8]
    # Too little padding shows at once.
    yield _same(_read(engine, few, [1] * 8), _read(engine, few, [8]))
    expected = _read(engine, tokens, [1] * len(tokens))
    if not np.isfinite(expected).all():
        raise EngineError("the model's logits are not finite; is its checkpoint damaged?")
    for chunks in ([64, 8], [2, 3, 5, 8, 16, 32, 6]):
        yield _same(_read(engine, tokens, chunks), expected)
    yield _same(_read(engine, tokens, [40, 32], first=True), expected)
    yield _same(_read(engine, tokens, [1] * 4 + [3] * 4 + [8] * 7, shared=True), expected)
    for shared in _branchings(engine):
        yield _same(_read_in_branches(engine, tokens, shared=shared), expected)
    yield _same_far_rows(engine, expected)


def check_alone(engine: ConfigurableEngine) -> bool:
    """Whether passes have the same bits on `threads_alone` threads: of one session and of two, of
    few rows and of many, with branches, and far behind the beginning. The engine must have 2
    sessions, and 2 branches unless its attention is paged."""
    if not engine.options.threads_alone:
        return True
    tokens = _tokens(engine, _CHECKED_TOKENS)
    found: dict[bool, list[NDArray[np.float32]]] = {}
    for engine.alone in (False, True):
        found[engine.alone] = [
            *(
                _read(engine, tokens, chunks, shared=shared)
                for chunks, shared in (([64, 8], False), ([1, 2, 3, 4, 8, 16, 32, 6], True))
            ),
            *(_read_in_branches(engine, tokens, shared=shared) for shared in _branchings(engine)),
            *_read_far(engine, 64, [1, 4, 1, 6, 4]),
        ]
    engine.alone = False
    return all(_same(one, other) for one, other in zip(*found.values(), strict=True))


def is_faster_alone(engine: ConfigurableEngine) -> bool:
    """Whether `threads_alone` threads are worth it: neither passes of one session nor those of
    several, with a row each, take longer, and together they take less. The engine must have 2
    sessions."""
    if not engine.options.threads_alone:
        return False
    sessions = [engine.open_session() for _ in range(engine.options.examined_sessions)]
    token = _tokens(engine, 1)
    batches = [
        [SequenceTokens(session, token) for session in few] for few in (sessions[:1], sessions)
    ]
    ends_s = time.monotonic() + _ALONE_BUDGET_S
    faster = any(
        _save_time(engine, batches)
        for trial in range(_ALONE_TRIALS)
        if trial == 0 or time.monotonic() < ends_s
    )
    for session in sessions:
        engine.close_session(session)
    return faster


def _save_time(engine: ConfigurableEngine, batches: list[list[SequenceTokens]]) -> bool:
    """Whether passes of each batch save time on `threads_alone` threads, measured now."""
    taken: dict[tuple[int, bool], list[float]] = {}
    for _ in range(_ALONE_ROUNDS):
        for number, batch in enumerate(batches):
            for engine.alone in (False, True):
                _, passes = _settled_ms(engine, batch)
                taken.setdefault((number, engine.alone), []).extend(passes)
    engine.alone = False
    median = {key: statistics.median(ms) for key, ms in taken.items()}
    shares = [median[number, True] / median[number, False] for number in range(len(batches))]
    return max(shares) <= _BEARABLE_ALONE and statistics.mean(shares) <= _WORTHWHILE_ALONE


def same_bits(one: ConfigurableEngine, other: ConfigurableEngine) -> bool:
    """Whether both compute the same bits, where `other` has decoders for its `graph_rows`: in
    passes that fill each of these and in passes that do not, of one session and shared with a
    second, on each number of threads. Both must have 2 sessions."""
    counts = list(_fitting_counts(other.options.graph_rows, one.context))
    tokens = _tokens(one, sum(counts))
    same = True
    for shared in (False, True):
        expected = _read(one, tokens, counts, shared=shared)
        for alone in {False, bool(other.options.threads_alone)}:
            other.alone = alone
            same = same and _same(_read(other, tokens, counts, shared=shared), expected)
        other.alone = False
    return same


def _fitting_counts(sizes: Sequence[int], most: int) -> Iterator[int]:
    """Rows of passes that fill decoders of these sizes, with another session's row or without, as
    far as so many positions reach."""
    for count in (count for rows in sorted(sizes) for count in (rows, rows - 1)):
        if 0 < count <= most:
            most -= count
            yield count


def measure_row_costs(engine: ConfigurableEngine) -> RowCosts:
    """Median milliseconds of a one-session pass by rows, at a middling context length, what the
    first pass with another number of rows takes longer where it takes most, and what share of its
    time a pass of one row takes while nobody else computes."""
    session = engine.open_session()
    context = min(_COST_CONTEXT, engine.context - max(engine.costed_rows) - 1)
    prompt = _tokens(engine, max(1, context))
    for start in range(0, len(prompt), 64):
        chunk = prompt[start : start + 64]
        engine.forward([SequenceTokens(session, chunk, logits=0 if start else 1)])
        engine.commit_kv(session, range(len(chunk)))
    costs: dict[int, list[float]] = {rows: [] for rows in engine.costed_rows}
    changes: dict[int, list[float]] = {rows: [] for rows in engine.costed_rows}
    alone: list[float] = []
    # Round after round over all row counts, so that a disturbance spreads over the whole curve.
    ends_s = time.monotonic() + _COST_BUDGET_S
    for done in range(_COST_ROUNDS):
        if done and time.monotonic() > ends_s:
            break
        if engine.options.threads_alone:
            engine.alone = True
            alone += _settled_ms(engine, [SequenceTokens(session, prompt[:1])])[1]
            engine.alone = False
        for rows, taken in costs.items():
            first, others = _settled_ms(engine, [SequenceTokens(session, prompt[:1] * rows)])
            taken += others
            changes[rows].append(first - statistics.median(others))
    engine.close_session(session)
    pass_ms = {rows: statistics.median(taken) for rows, taken in costs.items()}
    return RowCosts(
        pass_ms,
        max(0.0, *(statistics.median(longer) for longer in changes.values())),
        min(1.0, statistics.median(alone) / pass_ms[1]) if alone else 1.0,
    )


def _settled_ms(engine: Engine, batch: list[SequenceTokens]) -> tuple[float, list[float]]:
    """What the first of these passes takes, and what two take once they have settled."""
    settling: list[float] = []
    while len(settling) < _SETTLING_PASSES and sum(settling) < _SETTLING_MS:
        settling.append(_batch_ms(engine, batch))
    return settling[0], [_batch_ms(engine, batch) for _ in range(2)]


def _batch_ms(engine: Engine, batch: list[SequenceTokens]) -> float:
    started = time.perf_counter()
    engine.forward(batch)
    taken = (time.perf_counter() - started) * 1e3
    drop(engine, batch)
    return taken


def drop(engine: Engine, batch: Sequence[SequenceTokens]) -> None:
    """Keep nothing of a pass that was made for its time or its memory alone."""
    for rows in batch:
        engine.commit_kv(rows.session, [])


def _same(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Equal bit by bit."""
    return one.tobytes() == other.tobytes()


def _tokens(engine: Engine, count: int) -> list[int]:
    generator = np.random.default_rng(0)
    return [int(token) for token in generator.integers(0, engine.vocabulary, count)]


def _read(
    engine: Engine,
    tokens: Sequence[int],
    chunks: Sequence[int],
    *,
    shared: bool = False,
    first: bool = False,
) -> NDArray[np.float32]:
    """Logits of every token [tokens, vocabulary], read in chunks of these sizes, perhaps with a
    row of another session in every pass, perhaps by the engine's first session."""
    session, other = engine.open_session(), engine.open_session()
    if not first:
        session, other = other, session
    found = []
    at = 0
    for count in chunks:
        batch = [SequenceTokens(session, tokens[at : at + count])]
        if shared:
            batch.append(SequenceTokens(other, tokens[at : at + 1]))
        found += _rows(engine, batch, count)
        engine.commit_kv(session, range(count))
        if shared:
            engine.commit_kv(other, [0])
        at += count
    engine.close_session(session)
    engine.close_session(other)
    return np.stack(found)


def _same_far_rows(engine: Engine, near_alone: NDArray[np.float32]) -> bool:
    """Whether rows far behind the beginning and rows near it may share passes, and rows of one
    session.

    near_alone  logits of the first tokens, one row in each pass
    """
    far, last = _read_up_to_the_last(engine, min(100, engine.most_rows))
    near, first = engine.open_session(), _tokens(engine, len(last))
    at_once = [SequenceTokens(far, last)]
    far_alone = _rows(engine, at_once, len(last))
    drop(engine, at_once)
    only_first = [SequenceTokens(far, last[:1])]
    alone = _rows(engine, only_first, 1)[0]
    drop(engine, only_first)
    found: dict[int, list[NDArray[np.float32]]] = {far: [], near: []}
    for count in _SIDE_BY_SIDE:
        at = slice(len(found[far]), len(found[far]) + count)
        if not last[at]:  # of a short context
            break
        batch = [SequenceTokens(far, last[at]), SequenceTokens(near, first[at])]
        for rows, logits in zip(batch, engine.forward(batch), strict=True):
            found[rows.session] += [logits.row(row) for row in range(len(rows.tokens))]
            engine.commit_kv(rows.session, range(len(rows.tokens)))
    engine.close_session(far)
    engine.close_session(near)
    return (
        _same(alone, far_alone[0])
        and _same(np.stack(found[far]), np.stack(far_alone))
        and _same(np.stack(found[near]), near_alone[: len(first)])
    )


def _read_up_to_the_last(engine: Engine, chunk: int) -> tuple[int, list[int]]:
    """A session that has read all but the last tokens of a long text in chunks, and these."""
    tokens = _tokens(engine, min(_FAR_TOKENS, engine.context))
    behind = max(0, len(tokens) - _FAR_ROWS)
    session = engine.open_session()
    for start in range(0, behind, chunk):
        read = tokens[start : min(start + chunk, behind)]
        engine.forward([SequenceTokens(session, read, logits=0)])
        engine.commit_kv(session, range(len(read)))
    return session, tokens[behind:]


def _read_far(engine: Engine, chunk: int, counts: Sequence[int]) -> list[NDArray[np.float32]]:
    """Logits of the last tokens of a long text, read at once and then again in these counts, its
    beginning in chunks."""
    session, last = _read_up_to_the_last(engine, chunk)
    batch = [SequenceTokens(session, last)]
    at_once = _rows(engine, batch, len(last))
    drop(engine, batch)
    parts: list[NDArray[np.float32]] = []
    for count in counts:
        if read := last[len(parts) : len(parts) + count]:  # short contexts have fewer
            parts += _rows(engine, [SequenceTokens(session, read)], len(read))
            engine.commit_kv(session, range(len(read)))
    engine.close_session(session)
    return [np.stack(at_once), np.stack(parts)]


def _branchings(engine: ConfigurableEngine) -> tuple[bool, ...]:
    """Whether to share passes with branches: both ways, or in none where there are no branches."""
    return () if engine.options.paged else (False, True)


def _read_in_branches(
    engine: Engine, tokens: Sequence[int], *, shared: bool
) -> NDArray[np.float32]:
    """The same logits where every pass also holds a wrong branch, and perhaps another session."""
    other = engine.open_session()
    session = engine.open_session()
    found = []
    at = 0
    while at < len(tokens):
        right = tokens[at : at + 6]
        # A node, then a wrong sibling with a child, and the right path last.
        wrong = [(right[0] + 1) % engine.vocabulary, right[-1]]
        rows = [*wrong, *right]
        parents = [FOLLOWS_PREFIX, 0, FOLLOWS_PREFIX, *range(2, len(rows) - 1)]
        batch = [SequenceTokens(session, rows, parents)]
        if shared:
            batch.append(SequenceTokens(other, tokens[at : at + 3]))
        found += _rows(engine, batch, len(rows))[2:]
        engine.commit_kv(session, range(2, len(rows)))
        if shared:
            engine.commit_kv(other, range(len(tokens[at : at + 3])))
        at += len(right)
    engine.close_session(session)
    engine.close_session(other)
    return np.stack(found)


def _rows(engine: Engine, batch: list[SequenceTokens], count: int) -> list[NDArray[np.float32]]:
    logits = engine.forward(batch)[0]
    return [logits.row(index) for index in range(count)]

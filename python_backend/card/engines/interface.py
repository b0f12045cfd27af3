"""The interface of engines, and what their passes cost.

Engines forward rows of sessions, and keep the KV of accepted tokens. A session's KV cache is a
confirmed prefix followed by pending entries, one for each row forwarded since the last commit.
`forward` appends pending entries; `commit_kv` confirms some and drops the rest. `ArrayLogits` and
`RankedIds` are what forwarding returns.

The cost of a pass follows its number of rows (`RowCosts`, `CostCurve`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FOLLOWS_PREFIX = -1
"""Parent of a row that directly follows the confirmed prefix."""


BLOCK = 32
"""Tokens of a block."""


Text = Sequence[int] | NDArray[np.int64]
"""Token ids, [tokens]."""


class EngineError(RuntimeError):
    """A model cannot be loaded or run; the message says which file, what is wrong, what to do."""


@dataclass(slots=True, eq=False)
class Ranking:
    """Asks for the `count` likeliest ids of each row under softmax(logits / temperature + noise).

    noise  for every row with logits, [ids] float32 in the order of `Engine.ranked_ids`; None: no
           noise. The sequence may draw it lazily
    keys   [rows with logits] `card.sampling.noise.position_key` of each row, for an engine that
           draws the noise itself; None: the noise is not the pure noise of these keys
    """

    count: int
    temperature: float = 1.0
    noise: Sequence[NDArray[np.float32]] | None = None
    keys: NDArray[np.uint64] | None = None


@dataclass(slots=True)
class SequenceTokens:
    """One session's rows of a pass, one for each token.

    tokens   [rows] token ids
    parents  [rows] pending entry that each row follows (an earlier pending entry of the session,
             counting those this pass appends), or `FOLLOWS_PREFIX`; None for a chain that
             continues the confirmed prefix
    logits   number of last rows that need logits (prefill needs one or none)
    ranking  the ids that `Logits.best` returns; None: the caller reads logits row by row
    """

    session: int
    tokens: Sequence[int]
    parents: Sequence[int] | None = None
    logits: int | None = None
    ranking: Ranking | None = None

    @property
    def wanted(self) -> int:
        """Number of last rows that need logits; all rows if `logits` is None."""
        return len(self.tokens) if self.logits is None else self.logits


class Logits(Protocol):
    """Logits of one session's rows in one pass."""

    @property
    def states(self) -> NDArray[np.uint16] | None:
        """[rows, numbers] bfloat16 as its bits, the tapped hidden states of all rows
        (`EngineOptions.taps`); None: the engine taps none."""

    def row(self, index: int) -> NDArray[np.float32]:
        """[vocabulary] float32 logits of one row."""

    def best(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The ids that `SequenceTokens.ranking` asked for, likeliest first, and their
        log-probabilities under its softmax, [rows, count]."""


class Engine(Protocol):
    """A loaded model. One thread uses it; sessions are small integers."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def ranked_ids(self) -> NDArray[np.int64]:
        """[ids] ascending, the ids that the engine ranks: the vocabulary, or a shortlist."""

    @property
    def context(self) -> int:
        """Most positions of one session."""

    @property
    def most_rows(self) -> int:
        """Most rows of one session in one pass."""

    @property
    def row_invariant(self) -> bool:
        """Whether a row's logits depend only on its own token path, bit for bit."""

    @property
    def row_costs_ms(self) -> dict[int, float]:
        """Measured milliseconds of a pass by number of rows; empty if not measured."""

    @property
    def alone_share(self) -> float:
        """Measured time of a one-row pass while no other model computes, as a share of its time
        otherwise."""

    def open_session(self, text: Text = (), salt: bytes = b"") -> int:
        """Open a session. Its prefix is the longest remembered beginning of `text` with the same
        salt: whole blocks, or nothing. Raises `EngineError` when all sessions are in use."""

    def remember(self, session: int, text: Text, salt: bytes = b"") -> None:
        """Keep the KV of the confirmed prefix, a beginning of `text`, for later sessions with the
        same beginning. The least recently used KV is dropped to make room."""

    def close_session(self, session: int) -> None: ...

    def length(self, session: int) -> int:
        """Positions of the confirmed prefix."""

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        """Make one pass over the rows of all sessions in `batch`, which holds each at most once.

        alone  whether no other model computes now, so that the pass may use its cores too; the
               result is the same, bit for bit
        """

    @property
    def runs_ahead(self) -> bool:
        """Whether `forward_chain` is faster than the same passes one by one."""

    def forward_chain(
        self, rows: SequenceTokens, rankings: Sequence[Ranking], entry: int
    ) -> list[Logits]:
        """Forward rows of one session, then the likeliest id behind the last row, and so on.

        rows      rows of the first pass, with a ranking
        rankings  ranking of each later pass
        entry     pending entry of the last of `rows`; each later pass appends the next one

        Returns the logits of every pass: one more than `rankings`.
        """

    def commit_kv(
        self, session: int, confirmed: Sequence[int], surviving: Sequence[int] = ()
    ) -> None:
        """Append the pending entries `confirmed` to the prefix, in order. Keep the entries in
        `surviving`, renumbered in the given order (parents before children); drop the others."""


def wanted_rows(batch: Sequence[SequenceTokens]) -> Iterator[tuple[SequenceTokens, slice]]:
    """The rows of each session, and the slice of its logits among all wanted logits."""
    at = 0
    for rows in batch:
        yield rows, slice(at, at + rows.wanted)
        at += rows.wanted


def own_rows(batch: Sequence[SequenceTokens]) -> Iterator[slice]:
    """Of each session, the slice of its rows among all rows."""
    at = 0
    for rows in batch:
        yield slice(at, at + len(rows.tokens))
        at += len(rows.tokens)


class ArrayLogits:
    """Logits of one session's rows, [rows, vocabulary] float32."""

    def __init__(
        self, values: NDArray[np.float32], states: NDArray[np.uint16] | None = None
    ) -> None:
        self._values = values
        self.states = states

    def row(self, index: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self._values[index]
        return row

    def best(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        raise TypeError(
            "only an engine with sessions of growing trees ranks (SequenceTokens.ranking)"
        )


class RankedIds:
    """The likeliest ids of one session's rows, [rows, best], and their log-probabilities."""

    states = None

    def __init__(self, ids: NDArray[np.int64], log_probabilities: NDArray[np.float32]) -> None:
        self._ids = ids
        self._log_probabilities = log_probabilities

    def row(self, index: int) -> NDArray[np.float32]:
        raise TypeError("these rows have only their likeliest ids (SequenceTokens.ranking)")

    def best(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return self._ids, self._log_probabilities


MOST_CHOSEN = 32
"""Most rows of one session in a pass: more rows gain little where they are nearly free, and cost
much where they are not. Passes of more rows are measured for many sessions that share a pass."""


COSTED_ROWS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
"""Numbers of rows to measure on an engine that does not pad passes."""


@dataclass(frozen=True, slots=True)
class RowCosts:
    """The measured cost of a pass of one session on this machine.

    pass_ms      milliseconds by number of rows, of passes that follow one of the same number
    alone_share  time of a one-row pass while no other model computes, as a share of its time
                 otherwise
    """

    pass_ms: dict[int, float]
    alone_share: float = 1.0


def pass_cost_ms(measured_ms: Mapping[int, float], rows: int) -> float:
    """Milliseconds of a pass of `rows`, interpolated from the measured numbers of rows.

    Beyond the curve a row costs the average of the curve. Raises ValueError for an empty curve.
    """
    (first, first_ms), (last, last_ms) = min(measured_ms.items()), max(measured_ms.items())
    if rows <= last:
        known = sorted(measured_ms)
        return float(np.interp(rows, known, [measured_ms[number] for number in known]))
    slope_ms = (last_ms - first_ms) / max(1, last - first)
    return last_ms + max(0.0, slope_ms) * (rows - last)


def chain_tokens(rows: float, chance: float) -> float:
    """Expected tokens of a chain of `rows` - 1 candidates behind the last committed token, each
    accepted with `chance`: (1 - chance^rows) / (1 - chance)."""
    return float(rows) if chance >= 1.0 else float((1.0 - chance**rows) / (1.0 - chance))


class CostCurve:
    """`pass_cost_ms` of one curve, computed once for each number of rows.

    measured_ms  milliseconds of a pass by its rows; an empty curve cannot be evaluated
    """

    def __init__(self, measured_ms: Mapping[int, float]) -> None:
        self._measured_ms = dict(sorted(measured_ms.items()))
        self.numbers = list(self._measured_ms)
        self._known_ms: dict[int, float] = {}
        self._padded: dict[int, int] = {}
        for before, number in pairwise([0, *self.numbers]):
            self._padded |= dict.fromkeys(range(before + 1, number + 1), number)
        self.choices = [rows for rows in self.numbers if rows <= MOST_CHOSEN]

    def shared(self, sharing: int) -> CostCurve:
        """The curve of passes shared by `sharing` sessions, by the rows of each."""
        return CostCurve({rows: self.pass_ms(rows * sharing) for rows in self.choices})

    def pass_ms(self, rows: int) -> float:
        known = self._known_ms.get(rows)
        if known is None:
            known = self._known_ms[rows] = pass_cost_ms(self._measured_ms, rows)
        return known

    def padded(self, rows: int) -> int:
        """The least measured number of rows that is not below `rows`; beyond all of them, `rows`
        itself."""
        return self._padded.get(rows, rows)

    def best_rows(
        self,
        worth: Sequence[float],
        given: int = 0,
        cost_ms: Callable[[int], float] | None = None,
    ) -> int:
        """Number of rows with the most gain per millisecond. All rows, if nothing was measured, or
        if no row gains anything and the pass would be empty.

        A pass is padded to the next measured number of rows. Beyond the measured numbers, with very
        many sessions in a pass, there may be one more row for each given row.

        worth    [rows] gain of each row, in the order in which rows are taken
        given    rows that the pass has anyway, with a gain of 1 each
        cost_ms  milliseconds of a pass by its rows; None: `pass_ms`
        """
        cost_ms = cost_ms or self.pass_ms
        if not self._measured_ms:
            return len(worth)
        best, best_rate = 0 if given else len(worth), 0.0
        gives, at = float(given), 0
        for rows in self._numbers(given):
            more = min(rows - given, len(worth))
            gives += sum(worth[at:more])
            at = more
            rate = gives / cost_ms(rows)
            if rate > best_rate:
                best, best_rate = more, rate
            if at == len(worth):
                break
        return best

    def _numbers(self, given: int) -> Iterator[int]:
        """Numbers of rows that a pass with `given` rows may have."""
        yield from (rows for rows in self._measured_ms if rows >= given)
        last = max(self._measured_ms)
        yield from range(max(last, given - 1) + 1, 2 * given + 1)


class Forwards(Protocol):
    """The part of an engine that a chain needs."""

    def forward(self, batch: Sequence[SequenceTokens]) -> list[Logits]: ...


def forward_one_by_one(
    engine: Forwards, rows: SequenceTokens, rankings: Sequence[Ranking], entry: int
) -> list[Logits]:
    """`Engine.forward_chain` for an engine that reads each pass before the next one begins."""
    found = engine.forward([rows])
    for ranking in rankings:
        token = int(found[-1].best()[0][-1, 0])
        found += engine.forward([SequenceTokens(rows.session, [token], [entry], ranking=ranking)])
        entry += 1
    return found

"""What drafting and decoding need of an engine: forward rows of sessions, keep what was right.

A session's KV cache is a confirmed prefix followed by pending entries, one per row that was
forwarded since. `forward` appends pending entries; `commit_kv` confirms some, drops the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FOLLOWS_PREFIX = -1
"""Parent of a row that directly follows the confirmed prefix."""


Text = Sequence[int] | NDArray[np.int64]
"""Token ids, [tokens]."""


class EngineError(RuntimeError):
    """A model cannot be loaded or run; the message says which file, what is wrong, what to do."""


@dataclass(slots=True, eq=False)
class Ranking:
    """Asks for the `count` likeliest ids of each row under softmax(logits / temperature + noise).

    noise  of every row with logits, [ids] float32, for each of `Engine.ranked_ids`; None: none. It
           may be drawn when it is looked at
    keys   [rows with logits] `card.sampling.noise.position_key` of each row, if the noise is what
           they give and nothing else, for an engine that draws it itself; None: there is more to it
    """

    count: int
    temperature: float = 1.0
    noise: Sequence[NDArray[np.float32]] | None = None
    keys: NDArray[np.uint64] | None = None


@dataclass(slots=True)
class SequenceTokens:
    """What one session puts into a pass: a row for each token.

    tokens   [rows] token ids
    parents  [rows] pending entry that each row follows (an earlier pending entry of the session,
             counting those this pass appends), or `FOLLOWS_PREFIX`; None for a chain that
             continues the confirmed prefix
    logits   how many of the last rows need logits (prefill needs one or none)
    ranking  which ids `Logits.best` is to give; None: logits are read row by row
    """

    session: int
    tokens: Sequence[int]
    parents: Sequence[int] | None = None
    logits: int | None = None
    ranking: Ranking | None = None

    @property
    def wanted(self) -> int:
        """How many of the last rows need logits, all of them if that was left open."""
        return len(self.tokens) if self.logits is None else self.logits


class Logits(Protocol):
    """Logits of one session's rows in one pass."""

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
        """[ids] ascending, what it ranks: the vocabulary, or a shortlist."""

    @property
    def context(self) -> int:
        """Most positions of one session."""

    @property
    def most_rows(self) -> int:
        """Most rows of one session in one pass."""

    @property
    def row_invariant(self) -> bool:
        """Whether a row's logits depend on its own token path alone, bit for bit."""

    @property
    def row_costs_ms(self) -> dict[int, float]:
        """Measured milliseconds of a pass by number of rows; empty if never measured."""

    @property
    def alone_share(self) -> float:
        """Measured share of its time that a pass of one row takes while no other model computes."""

    def open_session(self, text: Text = (), salt: bytes = b"") -> int:
        """A fresh session. Its prefix is as much of `text` as was remembered with the same salt:
        nothing, or whole blocks. Raises `EngineError` when all are taken."""

    def remember(self, session: int, text: Text, salt: bytes = b"") -> None:
        """Keep the KV of the confirmed prefix, with which `text` begins, for later sessions whose
        text begins alike. What was not used for longest makes room."""

    def close_session(self, session: int) -> None: ...

    def length(self, session: int) -> int:
        """Positions of the confirmed prefix."""

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        """One pass over the rows of all sessions in `batch`, which holds each at most once.

        alone  whether no other model computes now, so that the pass may take its cores too; the
               bits are the same
        """

    @property
    def runs_ahead(self) -> bool:
        """Whether `forward_chain` takes less than so many passes one by one."""

    def forward_chain(
        self, rows: SequenceTokens, rankings: Sequence[Ranking], entry: int
    ) -> list[Logits]:
        """Forward rows of one session, then the likeliest id behind the last of them, and so on.

        rows      ask for a ranking
        rankings  what each pass behind the first asks for
        entry     pending entry that the last of `rows` becomes; each of the others is the next one

        The logits of every pass: one more than `rankings`.
        """

    def commit_kv(
        self, session: int, confirmed: Sequence[int], surviving: Sequence[int] = ()
    ) -> None:
        """Append the pending entries `confirmed` to the prefix, in order, and of the others keep
        those in `surviving`, renumbered in the given order (parents before children)."""

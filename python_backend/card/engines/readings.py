"""Reads one text in many ways; its logits must be the same bits in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from card.engines.interface import FOLLOWS_PREFIX, Engine, SequenceTokens
from card.engines.options import EngineOptions

CHECKED_TOKENS = 72
"""More than one block of positions (64 in torch)."""
_FAR_TOKENS = 272
"""A row this far behind the beginning attends to several blocks of positions, which a sum may take
in another order."""
_FAR_ROWS = 8


def random_tokens(engine: Engine, count: int) -> list[int]:
    """Random ids that are the same at every call; a longer list begins with the shorter one."""
    generator = np.random.default_rng(0)
    return [int(token) for token in generator.integers(0, engine.vocabulary, count)]


class ReadEngine(Engine, Protocol):
    """An engine with options, which bound its passes."""

    @property
    def options(self) -> EngineOptions: ...


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads texts with an engine.

    alone  as of `Engine.forward`
    """

    engine: ReadEngine
    alone: bool = False

    def text(
        self,
        tokens: Sequence[int],
        chunks: Sequence[int],
        *,
        shared: bool = False,
        first: bool = False,
    ) -> NDArray[np.float32]:
        """Logits of every token [tokens, vocabulary], read in chunks of these sizes; if asked for,
        with a row of another session in every pass, or by the engine's first session."""
        engine = self.engine
        session, other = engine.open_session(), engine.open_session()
        if not first:
            session, other = other, session
        found = []
        at = 0
        for count in chunks:
            batch = [SequenceTokens(session, tokens[at : at + count])]
            if shared:
                batch.append(SequenceTokens(other, tokens[at : at + 1]))
            found += self.rows(batch)
            engine.commit_kv(session, range(count))
            if shared:
                engine.commit_kv(other, [0])
            at += count
        engine.close_session(session)
        engine.close_session(other)
        return np.stack(found)

    def beside_wrong_paths(self, tokens: Sequence[int], *, shared: bool) -> NDArray[np.float32]:
        """The same logits from passes that also hold a wrong path, with or without another
        session."""
        engine = self.engine
        other, session = engine.open_session(), engine.open_session()
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
            found += self.rows(batch)[2:]
            engine.commit_kv(session, range(2, len(rows)))
            if shared:
                engine.commit_kv(other, range(len(tokens[at : at + 3])))
            at += len(right)
        engine.close_session(session)
        engine.close_session(other)
        return np.stack(found)

    def up_to_the_last(self, chunk: int) -> tuple[int, list[int], NDArray[np.float32]]:
        """A session that has read all but the last tokens of a long text in chunks, these, and the
        logits of the first chunk."""
        engine = self.engine
        tokens = random_tokens(engine, min(_FAR_TOKENS, engine.context))
        behind = max(1, len(tokens) - _FAR_ROWS)
        session = engine.open_session()
        first = np.stack(self.rows([SequenceTokens(session, tokens[: min(chunk, behind)])]))
        engine.commit_kv(session, range(len(first)))
        for start in range(len(first), behind, chunk):
            read = tokens[start : min(start + chunk, behind)]
            engine.forward([SequenceTokens(session, read, logits=0)], alone=self.alone)
            engine.commit_kv(session, range(len(read)))
        return session, tokens[behind:], first

    def rows(self, batch: list[SequenceTokens]) -> list[NDArray[np.float32]]:
        """Logits of the first session's rows."""
        logits = self.engine.forward(batch, alone=self.alone)[0]
        return [logits.row(index) for index in range(len(batch[0].tokens))]

    def dropped_rows(self, session: int, tokens: Sequence[int]) -> list[NDArray[np.float32]]:
        """Logits of rows that the session does not keep."""
        batch = [SequenceTokens(session, tokens)]
        found = self.rows(batch)
        drop(self.engine, batch)
        return found


def drop(engine: Engine, batch: Sequence[SequenceTokens]) -> None:
    """Drop the entries of a pass that was made only for its time or its memory."""
    for rows in batch:
        engine.commit_kv(rows.session, [])


def equal_bits(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Whether both arrays are equal bit by bit."""
    return one.tobytes() == other.tobytes()

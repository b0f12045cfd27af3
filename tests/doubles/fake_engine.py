"""An engine without a model: logits are a hash of the token path that the KV cache really holds.

Every cached entry carries the hash of the path it was forwarded on, as a real entry carries keys
and values. Bookkeeping that confirms, keeps or reads the wrong entry therefore changes logits;
what a real engine could only compute nonsense from is refused with `Misuse`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from card.engines import FOLLOWS_PREFIX, EngineError, Logits, Ranking, SequenceTokens, Text
from card.engines.interface import BLOCK, forward_one_by_one
from card.engines.sessions import PrefixCache

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


class Misuse(AssertionError):
    """Something that no engine could do, or that would silently spoil a real one's KV cache."""


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def extended(path: int, token: int) -> int:
    """Hash of a path that is longer by `token`."""
    return _mix((path * 31 + token + 1) * _STEP & _MASK)


EMPTY_PATH = 0


@dataclass(frozen=True)
class FakeModel:
    """Logits as a function of the token path.

    agreement  share of paths on which the logits are those of agreement 1.0 with the same seed
    sharpness  standard deviation of the logits
    """

    vocabulary: int = 24
    seed: int = 1
    agreement: float = 1.0
    sharpness: float = 2.0

    def extended(self, path: int, token: int) -> int:
        """Hash of what logits depend on behind a path that is longer by `token`."""
        return extended(path, token)

    def row(self, path: int) -> NDArray[np.float32]:
        """[vocabulary] float32 logits behind the path with this hash."""
        agrees = _mix(path ^ 0x5DEECE66D) / 2.0**64 < self.agreement
        key = _mix(path + (self.seed if agrees else self.seed + 1) * _STEP & _MASK)
        random = np.random.Generator(np.random.SFC64(key))
        noise: NDArray[np.float32] = random.standard_normal(self.vocabulary, dtype=np.float32)
        noise *= np.float32(self.sharpness)
        return noise

    def row_after(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """[vocabulary] float32 logits behind `tokens`, read afresh."""
        path = EMPTY_PATH
        for token in tokens:
            path = self.extended(path, token)
        return self.row(path)


class FakeLogits:
    """Implements `card.engines.interface.Logits`."""

    def __init__(
        self,
        values: NDArray[np.float32],
        ranking: Ranking | None = None,
        states: NDArray[np.uint16] | None = None,
    ) -> None:
        self.states = states
        self._values = values
        self._ranking = ranking

    def row(self, index: int) -> NDArray[np.float32]:
        if not 0 <= index < len(self._values):
            raise Misuse(f"row {index} of {len(self._values)} rows with logits")
        row: NDArray[np.float32] = self._values[index]
        return row

    def best(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        ranking = self._ranking
        if ranking is None:
            raise Misuse("no ranking was asked for")
        values = self._values / np.float32(ranking.temperature)
        if ranking.noise is not None:
            values += np.stack(ranking.noise)
        highest = values.max(axis=1, keepdims=True)
        normaliser = np.log(np.exp(values - highest).sum(axis=1, keepdims=True)) + highest
        ids = np.argsort(-values, axis=1, kind="stable")[:, : ranking.count]
        return ids, np.take_along_axis(values - normaliser, ids, axis=1)


@dataclass
class _Entry:
    parent: int
    path: int


@dataclass
class _Session:
    prefix: list[int] = field(default_factory=lambda: [EMPTY_PATH])
    """Hash of the empty path, then of every prefix that is one token longer."""
    pending: list[_Entry] = field(default_factory=list)


class FakeEngine:
    """Implements `card.engines.interface.Engine`.

    tree     whether pending entries may survive (the draft's layout) or not (the target's)
    batches  every pass so far
    read     (session, path) of every row so far
    """

    row_invariant = True
    most_rows = 256

    def __init__(
        self,
        model: FakeModel,
        *,
        tree: bool,
        sessions: int = 8,
        context: int = 256,
        kept_blocks: int = 8,
    ) -> None:
        self.model = model
        self.context = context
        self.row_costs_ms: dict[int, float] = {}
        self.alone = False
        self.alone_share = 1.0
        self.runs_ahead = False
        self.batches: list[list[SequenceTokens]] = []
        self.read: list[tuple[int, int]] = []
        self._tree = tree
        self._sessions: list[_Session | None] = [None] * sessions
        self._kept = PrefixCache(kept_blocks)
        self._blocks: dict[int, list[int]] = {}

    @property
    def vocabulary(self) -> int:
        return self.model.vocabulary

    @property
    def ranked_ids(self) -> NDArray[np.int64]:
        return np.arange(self.vocabulary)

    @property
    def open_sessions(self) -> int:
        return sum(session is not None for session in self._sessions)

    def open_session(self, text: Text = (), salt: bytes = b"") -> int:
        if None not in self._sessions:
            raise EngineError("all sessions are taken")
        index = self._sessions.index(None)
        self._sessions[index] = session = _Session()
        for block in self._kept.find(text, salt):
            session.prefix += self._blocks[block]
        return index

    def remember(self, session: int, text: Text, salt: bytes = b"") -> None:
        prefix = self._opened(session).prefix[1:]
        known = EMPTY_PATH
        for token, path in zip(text, prefix, strict=False):
            known = self.model.extended(known, int(token))
            if known != path:
                raise Misuse("another text was read than is to be remembered")
        for place, block in self._kept.add(text[: len(prefix)], salt):
            self._blocks[block] = prefix[place * BLOCK : (place + 1) * BLOCK]

    def close_session(self, session: int) -> None:
        self._opened(session)
        self._sessions[session] = None

    def length(self, session: int) -> int:
        return len(self._opened(session).prefix) - 1

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        self.alone = alone
        sessions = [rows.session for rows in batch]
        if not batch or len(set(sessions)) != len(sessions):
            raise Misuse(f"a pass over the sessions {sessions}")
        self.batches.append(list(batch))
        return [self._forward(rows) for rows in batch]

    def forward_chain(
        self, rows: SequenceTokens, rankings: Sequence[Ranking], entry: int
    ) -> list[Logits]:
        return forward_one_by_one(self, rows, rankings, entry)

    def _forward(self, rows: SequenceTokens) -> FakeLogits:
        session = self._opened(rows.session)
        first = len(session.pending)
        if first and (not self._tree or rows.parents is None):
            raise Misuse(f"{first} entries are pending that this pass would overwrite")
        if not len(rows.tokens):
            raise Misuse("a session without rows in a pass")
        parents = rows.parents
        if parents is None:
            parents = range(FOLLOWS_PREFIX, len(rows.tokens) - 1)
        if len(parents) != len(rows.tokens):
            raise Misuse(f"{len(parents)} parents for {len(rows.tokens)} tokens")
        for token, parent in zip(rows.tokens, parents, strict=True):
            self._append(session, token, parent)
        self.read += [(rows.session, entry.path) for entry in session.pending[first:]]
        wanted = len(rows.tokens) if rows.logits is None else rows.logits
        if not 0 <= wanted <= len(rows.tokens):
            raise Misuse(f"logits of {wanted} rows, forwarded {len(rows.tokens)}")
        read = session.pending[len(session.pending) - wanted :]
        values = [self.model.row(entry.path) for entry in read]
        logits = np.array(values, np.float32).reshape(wanted, self.vocabulary)
        return FakeLogits(logits, rows.ranking)

    def _append(self, session: _Session, token: int, parent: int) -> None:
        if not 0 <= token < self.vocabulary:
            raise Misuse(f"token {token} of a vocabulary of {self.vocabulary}")
        if not FOLLOWS_PREFIX <= parent < len(session.pending):
            raise Misuse(f"entry {len(session.pending)} follows entry {parent}")
        above = session.prefix[-1] if parent == FOLLOWS_PREFIX else session.pending[parent].path
        session.pending.append(_Entry(parent, self.model.extended(above, token)))
        if len(session.prefix) - 1 + self._depth(session, len(session.pending) - 1) > self.context:
            raise Misuse(f"a row beyond the context of {self.context}")

    def _depth(self, session: _Session, entry: int) -> int:
        depth = 0
        while entry != FOLLOWS_PREFIX:
            entry = session.pending[entry].parent
            depth += 1
        return depth

    def commit_kv(
        self, session: int, confirmed: Sequence[int], surviving: Sequence[int] = ()
    ) -> None:
        held = self._opened(session)
        if surviving and not self._tree:
            raise Misuse("a chain layout keeps no pending entries")
        if len({*confirmed, *surviving}) != len(confirmed) + len(surviving):
            raise Misuse(f"entries twice: confirmed {confirmed}, surviving {surviving}")
        last = FOLLOWS_PREFIX
        for entry in confirmed:
            if not 0 <= entry < len(held.pending) or held.pending[entry].parent != last:
                raise Misuse(f"confirmed {list(confirmed)} is no path: {entry} behind {last}")
            held.prefix.append(held.pending[entry].path)
            last = entry
        place = {last: FOLLOWS_PREFIX}
        kept: list[_Entry] = []
        for entry in surviving:
            if not 0 <= entry < len(held.pending) or held.pending[entry].parent not in place:
                raise Misuse(f"entry {entry} survives without what it follows")
            place[entry] = len(kept)
            kept.append(_Entry(place[held.pending[entry].parent], held.pending[entry].path))
        held.pending = kept

    def _opened(self, session: int) -> _Session:
        held = self._sessions[session] if 0 <= session < len(self._sessions) else None
        if held is None:
            raise Misuse(f"session {session} is not open")
        return held


def fake(engine: object) -> FakeEngine:
    """The engine that a test gave to a loop."""
    assert isinstance(engine, FakeEngine)
    return engine

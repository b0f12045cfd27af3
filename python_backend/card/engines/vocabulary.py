"""The ids that draft and target share, and a draft that reads and proposes only these.

Both models must have the same token for every id that the draft may propose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from card.engines.interface import (
    Engine,
    EngineError,
    Logits,
    Ranking,
    SequenceTokens,
    forward_one_by_one,
)
from model_files import ModelFiles, ModelFilesError, model_files_of
from model_files.interface import TokenTable

_RESERVED = re.compile(
    r"[<\[]\W*(.*(reserved|unused|placeholder|dummy|extra_|control_).*|pad(ding)?\W*\d*)\W*[>\]]",
    re.I,
)
"""Names of tokens that no text holds: reserved ones, and padding of the vocabulary's size."""

_REFUSED = "draft and target must share a vocabulary (draft: null serves the target alone)"


@dataclass(frozen=True)
class SharedVocabulary:
    """The shared ids of draft and target.

    target_size  ids that the target has: 0 to target_size - 1
    draft_size   ids that the draft has
    only_one     ids for which only one of the two has a token, ascending; the draft must not
                 propose them
    """

    target_size: int
    draft_size: int
    only_one: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether both models have the same ids."""
        return self.target_size == self.draft_size and not self.only_one

    @property
    def proposed(self) -> NDArray[np.bool_]:
        """Whether the draft may propose each of its ids, [draft_size]."""
        allowed = np.arange(self.draft_size) < self.target_size
        allowed[[identity for identity in self.only_one if identity < self.draft_size]] = False
        return allowed

    @property
    def note(self) -> str:
        """The differences of the vocabularies; empty if there are none."""
        said = []
        if self.draft_size != self.target_size:
            said.append(f"the draft has {self.draft_size} ids and the target {self.target_size}")
        if self.only_one:
            shown = ", ".join(map(str, self.only_one[:4])) + ("..." if self.only_one[4:] else "")
            said.append(f"only one of them has a token for {len(self.only_one)} ids ({shown})")
        return "; ".join([*said, "the draft proposes the ids that both have"]) if said else ""


def shared_vocabulary(draft: Path, target: Path) -> SharedVocabulary:
    """Compare two models. Raises `EngineError` at the first token with two different ids."""
    try:
        ours, theirs = model_files_of(draft), model_files_of(target)
        draft_size, target_size = _size(ours), _size(theirs)
        drafts, targets = ours.token_table(), theirs.token_table()
    except ModelFilesError as error:
        raise EngineError(str(error)) from error
    least = min(draft_size, target_size)
    if drafts.ids == targets.ids and max(targets.ids.values(), default=0) < least:
        return SharedVocabulary(target_size, draft_size)
    for token, identity in targets.ids.items():
        if drafts.ids.get(token, identity) != identity:
            raise EngineError(
                f"{_REFUSED}: token {token!r} is id {identity} in {target} and "
                f"{drafts.ids[token]} in {draft}"
            )
    shared = {token for token in targets.ids if token in drafts.ids}
    shared = {token for token in shared if targets.ids[token] < least}
    _check_needless(targets, shared, target, draft)
    _check_needless(drafts, shared, draft, target)
    behind_draft = _by_id(drafts, shared, draft_size)
    behind_target = _by_id(targets, shared, target_size)
    for identity in sorted(behind_draft.keys() & behind_target.keys()):
        pair = behind_draft[identity], behind_target[identity]
        if not any(_RESERVED.fullmatch(token) for token in pair):
            raise EngineError(
                f"{_REFUSED}: id {identity} is {pair[1]!r} in {target} and {pair[0]!r} in {draft}"
            )
    only_one = sorted(behind_draft.keys() | behind_target.keys())
    return SharedVocabulary(target_size, draft_size, tuple(only_one))


def vocabulary_size(path: Path) -> int:
    """Number of ids of the model at `path`. Raises `EngineError`."""
    try:
        return _size(model_files_of(path))
    except ModelFilesError as error:
        raise EngineError(str(error)) from error


def _size(files: ModelFiles) -> int:
    config = files.config()
    # A model of texts and images has the sizes of its text part in a section of their own.
    text = config.get("text_config")
    size = config.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    if not isinstance(size, int):
        raise EngineError(f"{files.config_file}: vocab_size is {size!r}; allowed: a whole number")
    return size


def _check_needless(table: TokenTable, shared: set[str], has: Path, lacks: Path) -> None:
    """Refuse a token that only one of the models has, if texts may hold it."""
    for token in sorted(table.ids.keys() - shared, key=table.ids.__getitem__):
        if token not in table.added and not _RESERVED.fullmatch(token):
            raise EngineError(
                f"{_REFUSED}: token {token!r} is id {table.ids[token]} in {has} and absent in "
                f"{lacks}"
            )


def _by_id(table: TokenTable, shared: set[str], size: int) -> dict[int, str]:
    """The tokens that the model can write and does not share, by id."""
    return {
        identity: token
        for token, identity in table.ids.items()
        if identity < size and token not in shared
    }


_NEVER = np.float32(-1e30)
"""Log-probability of an id that is not proposed: its probability is 0, and the number is finite."""


class SharedIds:
    """Implements `card.engines.interface.Engine` with the ids of the target.

    The draft reads an id that it lacks as another id. Its candidates behind that id are worse, but
    the text never changes.
    """

    def __init__(self, engine: Engine, shared: SharedVocabulary) -> None:
        self._engine = engine
        self.context, self.most_rows = engine.context, engine.most_rows
        self.row_invariant = engine.row_invariant
        self.row_costs_ms, self.alone_share = engine.row_costs_ms, engine.alone_share
        self.open_session, self.close_session = engine.open_session, engine.close_session
        self.remember, self.length = engine.remember, engine.length
        self.commit_kv = engine.commit_kv
        self._vocabulary = shared.target_size
        self._own = shared.draft_size
        self._proposed = shared.proposed
        shown = np.flatnonzero(self._proposed)
        if not len(shown):
            raise EngineError("draft and target must share a vocabulary: they have no id in common")
        self._other = int(shown[0])

    @property
    def vocabulary(self) -> int:
        return self._vocabulary

    @property
    def ranked_ids(self) -> NDArray[np.int64]:
        """The draft's ranked ids; an id that only the draft has is replaced by another one."""
        return np.minimum(self._engine.ranked_ids, self._vocabulary - 1)

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        found = self._engine.forward([self._read(rows) for rows in batch], alone=alone)
        return [
            _SharedLogits(logits, self._proposed, self._other, self._vocabulary) for logits in found
        ]

    @property
    def runs_ahead(self) -> bool:
        return False

    def forward_chain(
        self, rows: SequenceTokens, rankings: Sequence[Ranking], entry: int
    ) -> list[Logits]:
        return forward_one_by_one(self, rows, rankings, entry)

    def _read(self, rows: SequenceTokens) -> SequenceTokens:
        """The rows with ids of the draft."""
        known = [token if token < self._own else self._other for token in rows.tokens]
        return replace(rows, tokens=known)


class _SharedLogits:
    """Logits of one session's rows, with the ids of the target."""

    def __init__(
        self, logits: Logits, proposed: NDArray[np.bool_], other: int, vocabulary: int
    ) -> None:
        """`other` is an id that the draft may propose."""
        self.states = None
        self._logits = logits
        self._proposed = proposed
        self._other = other
        self._vocabulary = vocabulary

    def row(self, index: int) -> NDArray[np.float32]:
        own = np.where(self._proposed, self._logits.row(index), -np.inf).astype(np.float32)
        return _of_length(own, self._vocabulary, -np.inf)

    def best(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        ids, values = self._logits.best()
        proposed = self._proposed[ids]
        # Ids that are not proposed move to the end of their row, replaced by `other`.
        order = np.argsort(~proposed, axis=1, kind="stable")
        ids = np.where(proposed, ids, self._other)
        values = np.where(proposed, values, _NEVER)
        return np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1)


def _of_length(row: NDArray[np.float32], length: int, filler: float) -> NDArray[np.float32]:
    if len(row) >= length:
        return row[:length]
    return np.concatenate([row, np.full(length - len(row), filler, np.float32)])

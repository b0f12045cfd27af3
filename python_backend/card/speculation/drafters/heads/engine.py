"""Runs a head behind the interface of engines, with its own KV.

A row is a token with the features of the token before: the target's states where they are known,
else what the head computed for the row that it follows. A mask has features of its own. A row of
the text that has neither is left out of the KV. So is all but the end of a long part of the text
without states, because such rows are computed one after another. In PARD-2 a row without states
repeats the features of the row that it follows, or has none, and no row is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines import FOLLOWS_PREFIX, Ranking, SequenceTokens
from card.engines.checkpoints import Matrix
from card.engines.interface import RankedIds
from card.engines.options import EngineOptions
from card.engines.sessions import check_pending
from card.engines.torch.logits import rank
from card.speculation.drafters.heads.base import StatesEngine
from card.speculation.drafters.heads.eagle3 import Eagle3
from card.speculation.drafters.heads.pard2 import Pard2
from card.speculation.drafters.heads.passes import Passes

_WITHOUT_STATES = 16
"""Most rows of a text, at the end of a pass, that are computed without the target's states."""


@dataclass(slots=True)
class _Row:
    """A pending entry.

    path     pending rows with KV that it attends to, its own last
    depth    0 for a row that follows the prefix
    sound    it need not be computed again when the target's states come
    hidden   [hidden] that the head computed; None: the row was left out
    carried  [hidden], the features of a following row without states
    """

    path: list[int]
    depth: int
    sound: bool
    hidden: Tensor | None = None
    carried: Tensor | None = None


@dataclass(slots=True)
class _Prefix:
    """The confirmed text.

    length   its tokens
    used     places of its rows in the KV
    carried  as of its last row
    """

    length: int = 0
    used: int = 0
    carried: Tensor | None = None


@dataclass(slots=True)
class _Session:
    """
    sound    the beginning of the prefix that need not be computed again
    first    position of the first of `states`
    states   [tokens, hidden] features made of the target's states
    pending  rows behind the prefix
    """

    prefix: _Prefix = field(default_factory=_Prefix)
    sound: _Prefix = field(default_factory=_Prefix)
    first: int = 0
    states: list[Tensor | None] = field(default_factory=list)
    pending: list[_Row] = field(default_factory=list)

    def features(self, position: int) -> Tensor | None:
        """[hidden] made of the states of the token at this position, if they are known."""
        at = position - self.first
        return self.states[at] if 0 <= at < len(self.states) else None


class HeadEngine(StatesEngine):
    """Implements `card.engines.interface.Engine` on a processor."""

    def __init__(
        self,
        head: Eagle3 | Pard2,
        embedding: Matrix,
        scale: float,
        ranked: NDArray[np.int64],
        options: EngineOptions,
        passes: Passes | None = None,
    ) -> None:
        super().__init__(head, embedding, scale, ranked, options, passes)
        self._head = head
        with torch.inference_mode():
            self._mask = head.mask_features()
        self._sessions = [_Session() for _ in range(options.sessions)]

    def length(self, session: int) -> int:
        return self._sessions[session].prefix.length

    # --- the target's states ------------------------------------------------------------------

    def heard(self, session: int) -> int:
        this = self._sessions[session]
        return this.first + len(this.states)

    def _begin(self, session: int) -> None:
        self._sessions[session] = _Session()

    def _take(self, session: int, first: int, features: Tensor, sound: NDArray[np.bool_]) -> None:
        this = self._sessions[session]
        if first != this.first + len(this.states):
            this.first, this.states = first, []
        this.states += [row if good else None for row, good in zip(features, sound, strict=True)]

    def refresh(self, session: int) -> None:
        """Drop all pending rows, and those of the text that were computed without the target's
        states if these states have come since, so that they are read again."""
        this = self._sessions[session]
        this.pending = []
        position = this.sound.length - 1
        if this.features(position) is not None:
            this.prefix = this.sound
        elif self.heard(session) > position:
            this.sound = this.prefix
        done = min(max(0, this.sound.length - 1 - this.first), len(this.states))
        this.states, this.first = this.states[done:], this.first + done

    # --- passes -------------------------------------------------------------------------------

    def _forward(self, rows: SequenceTokens) -> RankedIds:
        this = self._sessions[rows.session]
        count, first = len(rows.tokens), len(this.pending)
        check_pending(rows.parents, first, count, self._places - self.options.context)
        embedded = self._embedded(rows.tokens)
        # Of a text, only the last rows are worth a computation without states.
        needed = count - rows.wanted
        least = min(needed, count - _WITHOUT_STATES) if rows.parents is None else 0
        parents = range(-1, count - 1) if rows.parents is None else rows.parents
        repeats = self._head.repeats_features
        wave: list[int] = []
        features: list[Tensor] = []
        for index, (token, parent) in enumerate(zip(rows.tokens, parents, strict=True)):
            above = None if parent == FOLLOWS_PREFIX else this.pending[parent]
            depth = 0 if above is None else above.depth + 1
            position = this.prefix.length + depth
            known = this.features(position - 1)
            if known is None and self._supposes:
                known = torch.zeros_like(embedded[0])
            if known is None and token == self._head.mask_id:
                known = self._mask
            row = _Row(
                [] if above is None else above.path, depth, known is not None or not position
            )
            this.pending.append(row)
            if known is None and not repeats and parent - first in wave:
                self._compute(rows.session, first, embedded, wave, features)
                wave, features = [], []
            if known is None:
                known = this.prefix.carried if above is None else above.carried
                if not repeats and (index < least or (known is None and index < needed)):
                    continue
            if repeats:
                row.carried = known
            row.path = [*row.path, first + index]
            wave.append(index)
            features.append(torch.zeros_like(embedded[0]) if known is None else known)
        if wave:
            self._compute(rows.session, first, embedded, wave, features)
        return self._ranked([row.hidden for row in this.pending[first + needed :]], rows.ranking)

    def _compute(
        self,
        session: int,
        first: int,
        embedded: Tensor,
        wave: Sequence[int],
        features: Sequence[Tensor],
    ) -> None:
        """Compute rows that do not take each other's features.

        first     the pending entry of the pass's first row
        embedded  [rows, hidden] of the pass
        wave      rows of the pass
        """
        this = self._sessions[session]
        rows = [this.pending[first + index] for index in wave]
        used, layers = this.prefix.used, self.architecture.layers
        before = first + wave[0]  # pending entries; those behind them are rows of this pass
        column = {first + index: used + before + at for at, index in enumerate(wave)}
        sees = np.zeros((layers, len(rows), used + before + len(rows)), np.bool_)
        sees[:, :, :used] = True
        for at, row in enumerate(rows):
            sees[:, at, [column.get(place, used + place) for place in row.path]] = True
        turn = self._turn([this.prefix.length + row.depth for row in rows])
        hidden, made = self._passes.run(
            [embedded[[*wave]], torch.stack([*features])],
            turn,
            torch.from_numpy(sees),
            self._lanes(session, layers, used + before),
        )
        places = torch.tensor([used + first + index for index in wave])
        shape = layers, 2, *made[0].shape
        self._kv[session][:, :, places] = torch.stack(made).view(shape)
        for row, found in zip(rows, hidden, strict=True):
            row.hidden = found
            if not self._head.repeats_features:
                row.carried = found

    def _ranked(self, hidden: Sequence[Tensor | None], ranking: Ranking | None) -> RankedIds:
        """The likeliest ids behind rows."""
        if not hidden:
            return RankedIds(np.zeros((0, 0), np.int64), np.zeros((0, 0), np.float32))
        logits = self._passes.logits(torch.stack([row for row in hidden if row is not None]))
        ids, log_probabilities = rank(logits, ranking or Ranking(1))
        return RankedIds(self.ranked_ids[ids.numpy()], log_probabilities.numpy())

    def commit_kv(
        self, session: int, confirmed: Sequence[int], surviving: Sequence[int] = ()
    ) -> None:
        this = self._sessions[session]
        before, pending = this.prefix, this.pending
        added = [at for at in confirmed if pending[at].hidden is not None]
        self._move(session, [before.used + at for at in (*added, *surviving)])
        this.prefix = self._behind(before, [pending[at] for at in confirmed])
        if this.sound.length == before.length:
            sound = [row.sound or row.hidden is None for row in (pending[at] for at in confirmed)]
            kept = sound.index(False) if False in sound else len(sound)
            this.sound = self._behind(before, [pending[at] for at in confirmed[:kept]])
        place = {at: number for number, at in enumerate(surviving)}
        this.pending = [
            _Row(
                [place[above] for above in pending[at].path if above in place],
                pending[at].depth - len(confirmed),
                pending[at].sound,
                pending[at].hidden,
                pending[at].carried,
            )
            for at in surviving
        ]

    def _behind(self, prefix: _Prefix, rows: Sequence[_Row]) -> _Prefix:
        """The prefix with these rows behind it."""
        kept = [row for row in rows if row.hidden is not None]
        carried = rows[-1].carried if rows else prefix.carried
        return _Prefix(prefix.length + len(rows), prefix.used + len(kept), carried)

    def _move(self, session: int, sources: Sequence[int]) -> None:
        """Move places of the KV to the end of the prefix."""
        used = self._sessions[session].prefix.used
        if [*sources] != [*range(used, used + len(sources))]:
            self._kv[session, :, :, used : used + len(sources)] = self._kv[session][:, :, sources]

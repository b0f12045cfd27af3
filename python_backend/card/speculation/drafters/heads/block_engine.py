"""Runs a head that makes whole blocks from the target's states, behind the interface of engines.

The head's KV is that of the target's states, by position. A token with late or missing states
has none. A block begins behind the newest known states: with the tokens of the text there
(`DSpark`), or with these states (`SpecFormer`). Rows of texts and of trees are
only remembered: a block reads them when it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

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
from card.speculation.drafters.heads.base import Head, StatesEngine
from card.speculation.drafters.heads.blocks import Attend, Turn
from card.speculation.drafters.heads.passes import Passes

_WITHOUT_STATES = 32
"""Most tokens of a text that a block begins with; older ones without states are not seen."""


class Chain(Protocol):
    """Chooses the tokens of a block one after another."""

    def logits(self) -> Tensor:
        """[1, ids] of the next place."""

    def take(self, token: int, place: int | None) -> None:
        """Go on behind a token; `place` is that among the head's ids, None: it has none."""


class BlockHead(Head, Protocol):
    """
    reads_tokens    a block begins with the tokens behind the newest known states; if not, it is
                    made of these states alone (`rows`)
    is_aligned      each place has a row of its own
    places          most tokens behind the newest known states, of a head that reads no tokens
    masks, mask_id  masks behind the tokens of a block, and the id of a mask
    lead            rows from the first one to that of the token behind it
    read_layers     layers that see the states before the block
    causal_windows  rows of a block do not see later ones in layers with a window
    """

    reads_tokens: bool
    is_aligned: bool
    places: int
    masks: int
    mask_id: int | None
    lead: int
    read_layers: int
    causal_windows: bool

    def context(self, features: Tensor, turn: Turn) -> Tensor:
        """[read_layers, 2, rows, kv_heads, size], keys and values made of the target's states."""

    def rows(self, newest: Tensor) -> Tensor:
        """[rows, hidden] of a block made of the newest features [1, hidden]."""

    def __call__(self, rows: Tensor, turn: Turn, attend: Attend) -> Tensor:
        """[rows, hidden] of a block."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, ids]"""

    def chain(
        self, hidden: Tensor, logits: Tensor, text: Sequence[tuple[int, int | None]]
    ) -> Chain | None:
        """Chooses the tokens of a block behind a text, from the block's rows and their logits;
        None: places are predicted independently.

        text  tokens behind the newest known states, each with its place among the head's ids
        """


@dataclass(slots=True)
class _Session:
    """
    text     the confirmed prefix
    pending  of each pending row, the tokens from the prefix to it
    known    [positions] whether the KV of the position's states is there
    end      position behind the newest known states
    heard    position behind the last states that were taken
    newest   [1, hidden] features of the newest known states
    """

    known: NDArray[np.bool_]
    text: list[int] = field(default_factory=list)
    pending: list[list[int]] = field(default_factory=list)
    end: int = 0
    heard: int = 0
    newest: Tensor | None = None


class BlockEngine(StatesEngine):
    """Implements `card.engines.interface.Engine` on a processor."""

    def __init__(
        self,
        head: BlockHead,
        embedding: Matrix,
        scale: float,
        ranked: NDArray[np.int64],
        options: EngineOptions,
        passes: Passes | None = None,
    ) -> None:
        super().__init__(head, embedding, scale, ranked, options, passes)
        self._head = head
        self.goes_on = head.reads_tokens or not head.is_aligned
        self._sessions = [self._empty() for _ in range(options.sessions)]

    def length(self, session: int) -> int:
        return len(self._sessions[session].text)

    def heard(self, session: int) -> int:
        return self._sessions[session].heard

    def refresh(self, session: int) -> None:
        self._sessions[session].pending = []

    def places(self, session: int, tokens: int) -> float:
        if self._head.reads_tokens:
            return super().places(session, tokens)
        this = self._sessions[session]
        return 0 if this.newest is None else self._head.places - (tokens - this.end)

    def commit_kv(
        self, session: int, confirmed: Sequence[int], surviving: Sequence[int] = ()
    ) -> None:
        this = self._sessions[session]
        if confirmed:
            this.text += this.pending[confirmed[-1]]
        this.pending = [this.pending[at][len(confirmed) :] for at in surviving]

    def _empty(self) -> _Session:
        return _Session(np.zeros(self._places, np.bool_))

    def _begin(self, session: int) -> None:
        self._sessions[session] = self._empty()

    def _take(self, session: int, first: int, features: Tensor, sound: NDArray[np.bool_]) -> None:
        this, end = self._sessions[session], first + len(features)
        made = self._passes.context(features, self._turn(slice(first, end)))
        sound = sound & made.isfinite().all(dim=4).all(dim=3).all(dim=1).all(dim=0).numpy()
        made[:, :, torch.from_numpy(~sound)] = 0  # an entry that no row sees may still spoil a sum
        self._kv[session, : len(made), :, first:end] = made
        this.known[first:end], this.heard = sound, end
        if sound.any():
            last = int(sound.nonzero()[0][-1])
            this.end, this.newest = first + last + 1, features[last : last + 1]

    def _forward(self, rows: SequenceTokens) -> RankedIds:
        this = self._sessions[rows.session]
        count, first = len(rows.tokens), len(this.pending)
        check_pending(rows.parents, first, count, self._places - self.options.context)
        parents = rows.parents or [FOLLOWS_PREFIX, *range(first, first + count - 1)]
        for token, parent in zip(rows.tokens, parents, strict=True):
            above = [] if parent == FOLLOWS_PREFIX else this.pending[parent]
            this.pending.append([*above, token])
        # A token has a block of its own, for a block shows each of its tokens to all others.
        blocks: list[tuple[int, int]] = []
        wanted = range(count - rows.wanted, count)
        for index in wanted:
            is_mask = rows.tokens[index] == self._head.mask_id or self._supposes
            if blocks and is_mask:
                blocks[-1] = blocks[-1][0], blocks[-1][1] + 1
            else:
                blocks.append((first + index, 1))
        found, at = [], 0
        for entry, places in blocks:
            text = [*this.text, *this.pending[entry]]
            ranking = _part(rows.ranking or Ranking(1), at, at + places)
            found.append(self._ranked(rows.session, text, places, ranking))
            at += places
        if not found:
            return RankedIds(np.zeros((0, 0), np.int64), np.zeros((0, 0), np.float32))
        ids, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return RankedIds(ids, values)

    def _block(self, session: int, text: Sequence[int], end: int, places: int) -> Tensor:
        """[rows, hidden] of the places behind a text; states are known before `end`."""
        this, head = self._sessions[session], self._head
        if head.reads_tokens:
            masks = [head.mask_id or 0] * max(head.masks, places - 1 + head.lead)
            start, skipped = end, len(text) - 1 - end + head.lead
            rows = self._embedded([*text[start:], *masks])
        else:
            start, skipped = max(end - 1, 0), head.lead
            empty = torch.zeros(1, self.architecture.hidden)
            rows = head.rows(empty if this.newest is None else this.newest)
            if head.is_aligned:
                skipped += len(text) - end
        sees = [self._sees(session, layer, start, len(rows)) for layer in range(head.read_layers)]
        turn = self._turn(slice(start, start + len(rows)))
        kept = self._lanes(session, head.read_layers, start)
        hidden, _ = self._passes.run([rows], turn, torch.stack(sees), kept)
        return hidden[skipped : skipped + places if head.is_aligned else None]

    def _sees(self, session: int, layer: int, start: int, rows: int) -> Tensor:
        """[rows, start + rows]: the known states before the block, and the block."""
        sees = np.ones((rows, start + rows), np.bool_)
        sees[:, :start] = self._sessions[session].known[:start] | self._supposes
        if (window := self.architecture.at(layer).window) is not None:
            sees[:, : max(0, start - window)] = False
            if self._head.causal_windows:
                sees[:, start:] = np.tri(rows, dtype=np.bool_)
        return torch.from_numpy(sees)

    def _ranked(
        self, session: int, text: Sequence[int], places: int, ranking: Ranking
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The likeliest ids of the places behind a text."""
        head, last = self._head, len(text) - 1
        end = last if self._supposes else self._sessions[session].end
        if head.reads_tokens:
            end = max(min(end, last), last + 1 - _WITHOUT_STATES, 0)
        hidden = self._block(session, text, end, places)
        logits = self._passes.logits(hidden)
        behind = [(token, self._place_of(token)) for token in text[end:]]
        chain = head.chain(hidden, logits, behind)
        if chain is None:
            ids, values = rank(logits, ranking)
            return self.ranked_ids[ids.numpy()], values.numpy()
        chosen, sizes = [], []
        for place in range(places):
            ids, values = rank(chain.logits(), _part(ranking, place, place + 1))
            chosen.append(self.ranked_ids[ids.numpy()])
            sizes.append(values.numpy())
            chain.take(int(chosen[-1][0, 0]), int(ids[0, 0]))
        return np.concatenate(chosen), np.concatenate(sizes)

    def _place_of(self, token: int) -> int | None:
        """The place of a token among the ids that the head ranks."""
        at = int(np.searchsorted(self.ranked_ids, token))
        return at if at < len(self.ranked_ids) and self.ranked_ids[at] == token else None


def _part(ranking: Ranking, first: int, end: int) -> Ranking:
    """The ranking of some of its rows."""
    noise = ranking.noise and [ranking.noise[row] for row in range(first, end)]
    return Ranking(ranking.count, ranking.temperature, noise)

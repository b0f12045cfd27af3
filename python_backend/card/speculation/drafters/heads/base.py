"""What the engines of heads have in common: sessions, threads, features of the target's states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.cache import States
from card.engines import Logits, Ranking, SequenceTokens, Text
from card.engines.architecture import Architecture
from card.engines.checkpoints import Matrix
from card.engines.interface import COSTED_ROWS, RowCosts, forward_one_by_one
from card.engines.options import MAX_PASS_ROWS, EngineOptions
from card.engines.rotary import rotary_tables
from card.engines.sessions import Sessions
from card.speculation.drafters.heads.passes import Passes, TorchPasses


class Head(Protocol):
    """
    tapped  numbers of the target's states of one token
    """

    architecture: Architecture
    tapped: int

    def features(self, states: Tensor) -> Tensor:
        """[rows, hidden] from the target's states [rows, tapped]."""


class StatesEngine:
    """The part of `card.engines.interface.Engine` that does not depend on the kind of the head; on
    a processor."""

    row_invariant = False
    alone_share = 1.0
    runs_ahead = False
    awaits_decoders = False
    goes_on = True
    """Whether a pass behind a path of the tree knows more than the pass before."""
    costed_rows = COSTED_ROWS
    most_rows = MAX_PASS_ROWS

    def __init__(
        self,
        head: Head,
        embedding: Matrix,
        scale: float,
        ranked: NDArray[np.int64],
        options: EngineOptions,
        passes: Passes | None = None,
    ) -> None:
        """
        scale   factor of the embedding
        ranked  [ids] ascending, the ids that the head ranks
        passes  computes the head's passes; None: PyTorch does
        """
        a = head.architecture
        self.architecture, self.options = a, options
        self.ranked_ids = ranked
        self.row_costs_ms: dict[int, float] = {}
        self._tapped, self._passes = head.tapped, passes or TorchPasses(head)
        self._embedding, self._scale = embedding, scale
        self._places = options.context + max(options.pending, MAX_PASS_ROWS)
        self._kv = torch.zeros(options.sessions, a.layers, 2, self._places, a.kv_heads, a.head_size)
        self._rotary = torch.from_numpy(rotary_tables(a.rope, a.head_size, self._places))
        self._supposes = False
        self._open = Sessions(options.sessions)

    @property
    def vocabulary(self) -> int:
        return self.architecture.vocabulary

    @property
    def context(self) -> int:
        return self.options.context

    def know_costs(self, costs: RowCosts) -> None:
        self.row_costs_ms = costs.pass_ms

    def open_session(self, text: Text = (), salt: bytes = b"") -> int:
        session = self._open.open()
        self._begin(session)
        return session

    def close_session(self, session: int) -> None:
        self._open.close(session)

    def remember(self, session: int, text: Text, salt: bytes = b"") -> None:
        """Nothing: the head's KV is small, and is computed again."""

    def hear(self, session: int, first: int, states: States) -> None:
        """Take the target's states of the text's tokens from position `first` on. States that are
        not finite are taken as missing."""
        if not len(states):
            return
        wide = states[:, : self._tapped].astype(np.uint32) << 16
        with torch.inference_mode():
            features = self._passes.features(torch.from_numpy(wide.view(np.float32)))
            self._take(session, first, features, features.isfinite().all(dim=-1).numpy())

    @contextlib.contextmanager
    def supposed_states(self) -> Iterator[None]:
        """Compute passes as if the target's states were known, to measure what they cost."""
        self._supposes = True
        yield
        self._supposes = False

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        threads = self.options.threads
        if threads and threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        with torch.inference_mode():
            return [self._forward(rows) for rows in batch]

    def forward_chain(
        self, rows: SequenceTokens, rankings: Sequence[Ranking], entry: int
    ) -> list[Logits]:
        return forward_one_by_one(self, rows, rankings, entry)

    def commit_kv(
        self, session: int, confirmed: Sequence[int], surviving: Sequence[int] = ()
    ) -> None:
        raise NotImplementedError

    def length(self, session: int) -> int:
        raise NotImplementedError

    def heard(self, session: int) -> int:
        """The position behind the last token with states that the head has taken."""
        raise NotImplementedError

    def refresh(self, session: int) -> None:
        """Follow a commit: drop all pending rows, and what can be computed better now."""
        raise NotImplementedError

    def places(self, session: int, tokens: int) -> float:
        """How far the head can draft ahead of a text of so many tokens."""
        return float("inf")

    def _embedded(self, tokens: Sequence[int]) -> Tensor:
        """[tokens, hidden]"""
        rows = self._embedding.rows(np.array(tokens, np.int64)).dense()
        return torch.from_numpy(rows) * self._scale

    def _turn(self, positions: Sequence[int] | slice) -> tuple[Tensor, Tensor]:
        turn = self._rotary[:, positions]
        return turn[0], turn[1]

    def _lanes(self, session: int, layers: int, entries: int) -> list[Tensor]:
        """Keys and values of the first entries of each layer, as of `Passes.run`."""
        lanes = self._kv[session, :layers, :, :entries]
        return [lanes[layer, kind] for layer in range(layers) for kind in range(2)]

    def _begin(self, session: int) -> None:
        """Begin a session with nothing known."""
        raise NotImplementedError

    def _take(self, session: int, first: int, features: Tensor, sound: NDArray[np.bool_]) -> None:
        """Take features [tokens, hidden] of the tokens from position `first` on; those that are not
        `sound` [tokens] are missing."""
        raise NotImplementedError

    def _forward(self, rows: SequenceTokens) -> Logits:
        raise NotImplementedError

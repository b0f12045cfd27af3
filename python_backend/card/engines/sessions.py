"""The common base of engines that run checkpoints themselves: sessions over laid-out buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from card.engines.architecture import Architecture
from card.engines.chains import forward_one_by_one
from card.engines.interface import EngineError, Logits, Ranking, SequenceTokens, Text
from card.engines.layout import EXTENT_MULTIPLE, KeyValueBuffers, Layout, rounded_up
from card.engines.options import MAX_PASS_ROWS, EngineOptions
from card.engines.prefix_cache import BLOCK, KeptTexts
from card.engines.row_costs import COSTED_ROWS, RowCosts


def lane_places(options: EngineOptions) -> int:
    """Places of a lane of the KV cache, with room for padding and pending entries behind the
    context's last position."""
    return rounded_up(options.context + most_pending(options), EXTENT_MULTIPLE)


def kept_lanes(options: EngineOptions) -> int:
    """Number of lanes for kept texts, behind the lanes of sessions."""
    return -(-options.kept_tokens // lane_places(options))


def most_pending(options: EngineOptions) -> int:
    """Most unconfirmed entries of a session."""
    return max(options.pending, MAX_PASS_ROWS)


class SessionEngine:
    """Sessions, their layout and the costs measured at load; a subclass computes passes.

    kv  has a lane of `lane_places` for every session, then `kept_lanes`
    """

    def __init__(
        self,
        architecture: Architecture,
        options: EngineOptions,
        kv: KeyValueBuffers,
        layout: Layout,
    ) -> None:
        self.architecture = architecture
        self.options = options
        self.row_invariant = False
        self.row_costs = RowCosts({})
        self._layout = layout
        self._kept = KeptTexts(kv, options.sessions, lane_places(options), options.kept_tokens)

    def know_costs(self, costs: RowCosts) -> None:
        """Set the measured costs of passes."""
        self.row_costs = costs

    @property
    def variants(self) -> tuple[EngineOptions, ...]:
        """The options that calibration tries, cheapest first: paddings of a chain's rows."""
        return tuple(replace(self.options, row_multiple=rows) for rows in (1, 2, 4, 8, 16))

    @property
    def costed_rows(self) -> tuple[int, ...]:
        """Numbers of rows to measure."""
        return COSTED_ROWS

    @property
    def awaits_decoders(self) -> bool:
        """Whether faster decoders will soon replace the present ones."""
        return False

    @property
    def examination_s(self) -> float:
        """Unlimited, because the calibration of a processor is kept."""
        return math.inf

    @property
    def row_costs_ms(self) -> dict[int, float]:
        return self.row_costs.pass_ms

    def threads(self, *, alone: bool) -> int:
        """Threads of a pass; 0: the process's default."""
        return (alone and self.options.threads_alone) or self.options.threads

    @property
    def alone_share(self) -> float:
        return self.row_costs.alone_share

    @property
    def vocabulary(self) -> int:
        return self.architecture.vocabulary

    @property
    def ranked_ids(self) -> NDArray[np.int64]:
        return np.arange(self.vocabulary)

    @property
    def context(self) -> int:
        return self.options.context

    @property
    def most_rows(self) -> int:
        return MAX_PASS_ROWS

    def open_session(self, text: Text = (), salt: bytes = b"") -> int:
        blocks = self._kept.find(text, salt)
        session = self._layout.open(len(blocks) * BLOCK)
        self._kept.load(blocks, session)
        return session

    def remember(self, session: int, text: Text, salt: bytes = b"") -> None:
        self._kept.save(text[: self._layout.length(session)], salt, session)

    @property
    def runs_ahead(self) -> bool:
        return False

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        raise NotImplementedError

    def forward_chain(
        self, rows: SequenceTokens, rankings: Sequence[Ranking], entry: int
    ) -> list[Logits]:
        return forward_one_by_one(self, rows, rankings, entry)

    def close_session(self, session: int) -> None:
        self._layout.close(session)

    def length(self, session: int) -> int:
        return self._layout.length(session)

    def commit_kv(
        self, session: int, confirmed: Sequence[int], surviving: Sequence[int] = ()
    ) -> None:
        self._layout.commit_kv(session, confirmed, surviving)


def taps_of(architecture: Architecture, options: EngineOptions) -> tuple[int, ...]:
    """The options' taps without negative ones. Raises `EngineError` for a tap of no layer."""
    last = architecture.layers
    if wrong := [tap for tap in options.taps if not -last - 1 <= tap <= last]:
        raise EngineError(
            f"draft.taps names the hidden states {wrong}; the target of {last} layers has 0 to "
            f"{last}, or -1 to {-last - 1} from the end"
        )
    return tuple(tap % (last + 1) for tap in options.taps)


def check_context(directory: Path, architecture: Architecture, options: EngineOptions) -> None:
    """Raises `EngineError` if the options ask for more positions than the model has."""
    if options.context > architecture.context:
        raise EngineError(
            f"{directory}: the model was built for {architecture.context} positions; "
            f"limits.context_tokens asks for {options.context}"
        )

"""The OpenVINO engine: sessions and their passes, computed by a checkpoint's decoders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from card.engines.interface import ArrayLogits, EngineError, Logits, RowCosts, SequenceTokens
from card.engines.openvino.memory import examining, pages_of
from card.engines.openvino.model import DecoderModel, load_model
from card.engines.openvino.nodes import ANY_ROWS
from card.engines.openvino.pages import PagedCache, PageLayout
from card.engines.openvino.runner import Runner
from card.engines.options import EngineOptions
from card.engines.sessions import SessionEngine, most_pending, rounded_up

_MOST_COMPRESSED_ROWS = 64
"""Most rows of a pass over compressed matrices: from 81 on the product's order of sums changes."""


class OpenVinoEngine(SessionEngine):
    """Implements `card.engines.interface.Engine` with a decoder for any pass, decoders for fixed
    numbers of rows, or both."""

    def __init__(self, model: DecoderModel, options: EngineOptions, first_page: int = 0) -> None:
        """
        first_page  first of the model's pages that this engine's sessions use
        """
        self._kv = PagedCache(model.pages, options, first_page)
        # A draft reads a chunk faster as one sequence; a target's rows must be independent.
        self._pages = PageLayout(
            self._kv, options.sessions, most_pending(options), joins_chunks=options.grows_trees
        )
        super().__init__(model.architecture, options, self._kv, self._pages)
        self.model = model
        self._runners = self._runners_of(model)
        self._adopted: tuple[DecoderModel, list[tuple[int, Runner]], int] | None = None
        self.passes_made = 0
        """Number of passes computed so far."""

    @classmethod
    def load(cls, directory: Path, options: EngineOptions, *, any_rows: bool = False) -> Self:
        """Load a Hugging Face directory or a GGUF file. Raises `EngineError` naming what does not
        fit.

        any_rows  whether a target begins with one decoder for any rows (`later.Exchange`)
        """
        return cls(*load_model(directory, options, any_rows=any_rows))

    def reconfigured(self, options: EngineOptions) -> OpenVinoEngine:
        """An engine with the same weights and other buffers, for calibration. It takes over this
        engine's pages, so this engine must not be used any more."""
        model, before = self.model, self.options
        same_graphs = (options.compressed, options.grows_trees) == (
            before.compressed,
            before.grows_trees,
        )
        if not (same_graphs and model.fits(options)):
            return self.load(self.directory, options)
        model.pages.give_back()
        return OpenVinoEngine(model, options)

    @property
    def directory(self) -> Path:
        """The checkpoint's directory, or its file."""
        return self.model.directory

    @property
    def dtype(self) -> str:
        return self.options.dtype

    @property
    def ranked_ids(self) -> NDArray[np.int64]:
        ranked = self.model.ranked
        return super().ranked_ids if ranked is None else ranked.astype(np.int64)

    # --- exchanging decoders -------------------------------------------------------------------

    @property
    def awaits_decoders(self) -> bool:
        """Whether a decoder for any rows computes all passes until better decoders are ready."""
        return bool(self.options.graph_rows) and self.model.compile_more is not None

    def with_same_decoders(self) -> OpenVinoEngine:
        """An engine with the same decoders and its own sessions."""
        return self._beside(self.model)

    def with_fixed_rows(self, threads_alone: int) -> OpenVinoEngine:
        """An engine with decoders for fixed rows, to compare with `with_same_decoders`."""
        options = replace(self.options, threads_alone=threads_alone)
        return self._beside(self.model.with_fixed_rows(options), threads_alone)

    def _beside(self, model: DecoderModel, threads_alone: int = 0) -> OpenVinoEngine:
        """An engine of few sessions on spare pages, for an examination while this one serves."""
        options = replace(examining(self.options), threads_alone=threads_alone)
        beside = OpenVinoEngine(model, options, pages_of(self.options))
        beside.row_invariant = True
        return beside

    def adopt(self, fixed: OpenVinoEngine) -> None:
        """Compute with the decoders of `fixed` from the next pass on. Another thread may compute a
        pass at the same time."""
        model = fixed.model
        self._adopted = model, self._runners_of(model), fixed.options.threads_alone
        model.unload_raw()  # under load the costs stay unknown for long

    def know_adopted_costs(self, costs: RowCosts) -> None:
        """Set the measured costs of the adopted decoders."""
        self._take_adopted()
        self.know_costs(costs)

    def _take_adopted(self) -> None:
        if self._adopted is not None:
            self.model, self._runners, threads_alone = self._adopted
            self.options = replace(self.options, threads_alone=threads_alone)
            self._adopted = None

    # --- examination ----------------------------------------------------------------------------

    @property
    def variants(self) -> tuple[EngineOptions, ...]:
        """Options with compressed matrices come first; with padding these save nothing. For each
        padding, decoders for fixed rows come first: for some small models the plugin fuses more in
        these, and they round differently."""
        paddings = super().variants
        wide = tuple(replace(options, compressed=False) for options in paddings)
        kinds = (*paddings[:1], *wide) if self.options.compressed else wide
        found: dict[EngineOptions, None] = {}
        for options in kinds:
            found |= dict.fromkeys((options, replace(options, graph_rows=())))
        return tuple(found)

    @property
    def most_rows(self) -> int:
        most = _MOST_COMPRESSED_ROWS if self.options.compressed else super().most_rows
        return most if self._takes_any_for_good else min(most, max(self.options.graph_rows))

    @property
    def costed_rows(self) -> tuple[int, ...]:
        """The rows of its decoders, to which passes are padded, unless a decoder for any rows
        stays."""
        if self._takes_any_for_good:
            return super().costed_rows
        return tuple(sorted(self.options.graph_rows))

    @property
    def _takes_any_for_good(self) -> bool:
        return ANY_ROWS in self.model.decoders and not self.awaits_decoders

    def know_costs(self, costs: RowCosts) -> None:
        super().know_costs(costs)
        self.model.unload_raw()

    # --- passes ---------------------------------------------------------------------------------

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        self._take_adopted()
        self.passes_made += 1
        threads = self.threads(alone=alone)
        found: dict[int, Logits] = {}
        for places in self._passes(batch):
            found.update(
                zip(places, self._forward([batch[at] for at in places], threads), strict=True)
            )
        return [found[place] for place in range(len(batch))]

    def _passes(self, batch: Sequence[SequenceTokens]) -> list[list[int]]:
        """Indices of the batch, grouped into passes of the graph."""
        most = self.most_rows
        passes: list[list[int]] = []
        room: list[int] = []
        for place, rows in enumerate(batch):
            if len(rows.tokens) > most:
                raise EngineError(f"{len(rows.tokens)} rows of one session; a pass takes {most}")
            count = self._pages.most_rows(rows)
            at = next((at for at, left in enumerate(room) if count <= left), None)
            if at is None:
                at = len(passes)
                passes.append([])
                room.append(most)
            passes[at].append(place)
            room[at] -= count
        return passes

    def _forward(self, batch: Sequence[SequenceTokens], threads: int) -> list[Logits]:
        if len(batch) == 1 and self._pages.most_rows(batch[0]) > self.most_rows:
            return [self._forward_in_parts(batch[0], threads)]
        this = self._pages.plan(batch)
        # More threads are used only after a load has checked that they compute the same bits.
        exactly = not self.row_invariant
        needed = rounded_up(len(this.tokens), self.options.row_multiple)
        runner = next(
            (runner for rows, runner in self._runners if needed <= rows or rows == ANY_ROWS), None
        )
        if runner is None:
            raise EngineError(f"no decoder takes a pass of {needed} rows")
        return runner.run(this, batch, threads, needed=needed, exactly=exactly)

    def _forward_in_parts(self, rows: SequenceTokens, threads: int) -> Logits:
        """Forward a tree that is too large for one pass, with the copies of its rows, by row."""
        assert rows.parents is not None
        parts = [
            SequenceTokens(rows.session, [token], [parent])
            for token, parent in zip(rows.tokens, rows.parents, strict=True)
        ]
        found = [self._forward([part], threads)[0] for part in parts]
        states = [logits.states for logits in found if logits.states is not None]
        return ArrayLogits(
            np.stack([logits.row(0) for logits in found]),
            np.concatenate(states) if states else None,
        )

    def close_session(self, session: int) -> None:
        self._kv.release(session)
        super().close_session(session)

    def _runners_of(self, model: DecoderModel) -> list[tuple[int, Runner]]:
        """A runner for each decoder, with its rows; the decoder for any rows comes last."""
        ids = len(self.ranked_ids) if self.options.grows_trees else None
        return [
            (
                rows,
                Runner(
                    decoder,
                    self._kv.pages_of_lane,
                    ids,
                    only_ranks=model.ranked is not None,
                    taps=bool(self.options.taps),
                ),
            )
            for rows, decoder in sorted(
                model.decoders_for(self.options).items(),
                key=lambda known: known[0] or math.inf,
            )
        ]

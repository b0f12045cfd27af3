"""The OpenVINO engine: sessions and their passes, computed by a checkpoint's decoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from card.engines.interface import EngineError, Logits, SequenceTokens
from card.engines.layout import SHORT
from card.engines.openvino.cache import SPARE_SESSIONS, Cache, first_spare_page, make_cache
from card.engines.openvino.compiled import CompiledDecoder
from card.engines.openvino.model import DecoderModel, load_model
from card.engines.openvino.paged.cache import PagedCache
from card.engines.openvino.runner import Runner
from card.engines.openvino.runners import Runners
from card.engines.openvino.shapes import Padding
from card.engines.options import EngineOptions
from card.engines.row_costs import RowCosts
from card.engines.sessions import SessionEngine

_MOST_COMPRESSED_ROWS = 64
"""Rows of a pass over compressed matrices: from 81 on their product adds up in another order."""


class OpenVinoEngine(SessionEngine[Cache]):
    """Implements `card.engines.interface.Engine` with a decoder for any pass, some for passes with
    so many rows, or both."""

    def __init__(self, model: DecoderModel, options: EngineOptions, first_page: int = 0) -> None:
        """
        first_page  of the model's, which this engine's sessions have if attention is paged
        """
        kv, layout, self._make_feed = make_cache(
            model.architecture, options, model.pages, first_page
        )
        super().__init__(model.architecture, options, kv, layout)
        self.model = model
        self._runners = self._runners_of(model)
        self._adopted: tuple[DecoderModel, Runners, int] | None = None
        self.passes_made = 0
        """So many passes has it computed."""

    @classmethod
    def load(cls, directory: Path, options: EngineOptions, *, any_rows: bool = False) -> Self:
        """Load a Hugging Face directory or a GGUF file. Raises `EngineError` saying what does not
        fit.

        any_rows  whether a target's paged attention begins with one decoder for any rows
                  (`later.Exchange`)
        """
        return cls(*load_model(directory, options, any_rows=any_rows))

    def reconfigured(self, options: EngineOptions) -> OpenVinoEngine:
        """The same weights with other buffers (used while calibrating). Where attention is paged,
        both have the same pages: use this engine no more."""
        model, before = self.model, self.options
        same_graphs = (options.paged, options.compressed, options.grows_trees) == (
            before.paged,
            before.compressed,
            before.grows_trees,
        )
        if not (same_graphs and model.fits(options)):
            return self.load(self.directory, options)
        if model.pages is not None:
            model.pages.give_back()
        return OpenVinoEngine(model, options)

    @property
    def directory(self) -> Path:
        """Of the checkpoint, or its file."""
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
        """Whether it computes all passes with a decoder for any rows, for now."""
        return bool(self.options.graph_rows) and self.model.compile_more is not None

    def likeness(self) -> OpenVinoEngine:
        """One with the same decoders and sessions of its own."""
        return self._beside(self.model)

    def with_fixed_rows(self, threads_alone: int) -> OpenVinoEngine:
        """One with decoders for fixed numbers of rows, in the place of `likeness`."""
        options = replace(self.options, threads_alone=threads_alone)
        return self._beside(self.model.with_fixed_rows(options), threads_alone)

    def _beside(self, model: DecoderModel, threads_alone: int = 0) -> OpenVinoEngine:
        """An engine of few sessions on spare pages, to be examined while this one serves."""
        options = replace(
            self.options,
            sessions=SPARE_SESSIONS,
            kept_tokens=0,
            threads_alone=threads_alone,
        )
        beside = OpenVinoEngine(model, options, first_spare_page(self.options))
        beside.row_invariant = True
        return beside

    def adopt(self, fixed: OpenVinoEngine) -> None:
        """Compute with the decoders of `fixed` from the next pass on. Another thread may be
        computing one now."""
        model = fixed.model
        self._adopted = model, self._runners_of(model), fixed.options.threads_alone
        model.unload_raw()  # under load, costs are not known for long

    def settle(self, costs: RowCosts) -> None:
        """Know what was measured of these."""
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
        """Compressed matrices first: if these need padding, they save nothing. Of either, paged
        attention before masks, and each padding first with the graphs for fixed rows: of some small
        models the plugin fuses more in these, and then they round otherwise."""
        paddings = super().variants
        wide = tuple(replace(options, compressed=False) for options in paddings)
        kinds = [paddings[:1], wide] if self.options.compressed else [wide]
        found: dict[EngineOptions, None] = {}
        for kind in kinds:
            for paged in (True, False) if self.options.paged else (False,):
                for options in (replace(options, paged=paged) for options in kind):
                    found |= dict.fromkeys((options, replace(options, graph_rows=())))
        return tuple(found)

    @property
    def most_rows(self) -> int:
        most = _MOST_COMPRESSED_ROWS if self.options.compressed else super().most_rows
        return most if self._takes_any_for_good else min(most, max(self.options.graph_rows))

    @property
    def costed_rows(self) -> tuple[int, ...]:
        """Those of its decoders, to which all others are padded, unless one takes any for good."""
        if self._takes_any_for_good:
            return super().costed_rows
        return tuple(sorted(self.options.graph_rows))

    @property
    def _takes_any_for_good(self) -> bool:
        return self.model.takes_any and not self.awaits_decoders

    def know_costs(self, costs: RowCosts) -> None:
        super().know_costs(costs)
        self._runners.know_costs(costs)
        self.model.unload_raw()

    # --- passes ---------------------------------------------------------------------------------

    def forward(self, batch: Sequence[SequenceTokens]) -> list[Logits]:
        self._take_adopted()
        self.passes_made += 1
        found: dict[int, Logits] = {}
        for places in self._passes(batch):
            found.update(zip(places, self._forward([batch[at] for at in places]), strict=True))
        return [found[place] for place in range(len(batch))]

    def _passes(self, batch: Sequence[SequenceTokens]) -> list[list[int]]:
        """Places in the batch of what the graph takes at once. Under masks it attends all its lanes
        alike, so long chunks do not share a pass with short rows."""
        most = self.most_rows
        passes: list[list[int]] = []
        room: list[int] = []
        for place, rows in enumerate(batch):
            count = len(rows.tokens)
            if count > most and (self.options.paged or self.options.compressed):
                raise EngineError(f"{count} rows of one session; a pass takes {most}")
            alone = count > SHORT and not self.options.paged
            at = next((at for at, left in enumerate(room) if count <= left and not alone), None)
            if at is None:
                at = len(passes)
                passes.append([])
                room.append(most)
            passes[at].append(place)
            room[at] = 0 if alone else room[at] - count
        return passes

    def _forward(self, batch: Sequence[SequenceTokens]) -> list[Logits]:
        this = self._layout.plan(batch)
        # Until a load has found that bits are the same on more threads, none but those are used.
        exactly = not self.row_invariant
        return self._runners.of(this).run(this, batch, self.threads, exactly=exactly)

    def close_session(self, session: int) -> None:
        if isinstance(self._kv, PagedCache):
            self._kv.release(session)
        super().close_session(session)

    def _runners_of(self, model: DecoderModel) -> Runners:
        def make_runner(decoder: CompiledDecoder, padding: Padding) -> Runner:
            return Runner(
                decoder,
                model.architecture,
                self._kv,
                self._make_feed,
                ranks=self.options.grows_trees,
                ranked=model.ranked,
                padding=padding,
            )

        return Runners(model.decoders_for(self.options), make_runner)

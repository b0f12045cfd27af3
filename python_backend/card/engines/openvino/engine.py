"""The OpenVINO engine: a compiled decoder, its sessions, and what was measured at load."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from card.engines.architecture import Architecture, read_architecture
from card.engines.checkpoints import (
    Checkpoint,
    QuantisedCheckpoint,
    group_of,
    open_checkpoint,
)
from card.engines.draft_vocabulary import read_draft_vocabulary
from card.engines.interface import EngineError, Logits, SequenceTokens
from card.engines.layout import SHORT, BranchLayout, Layout, PageLayout
from card.engines.openvino.compiled import (
    CompiledDecoder,
    Decoders,
    compile_decoders,
    kv_type,
    pass_dtype,
)
from card.engines.openvino.decoder import DecoderOptions, build_decoder
from card.engines.openvino.graph import ANY_ROWS
from card.engines.openvino.inputs import Inputs
from card.engines.openvino.masked.cache import KeyValueCache
from card.engines.openvino.masked.feed import MaskedFeed
from card.engines.openvino.paged.cache import PAGE, PagedCache, PageMemory
from card.engines.openvino.paged.feed import PagedFeed
from card.engines.openvino.runner import Feed, Runner
from card.engines.openvino.runners import Runners
from card.engines.openvino.shapes import Padding
from card.engines.openvino.threads import thread_limit
from card.engines.openvino.weight_memory import WeightMemory
from card.engines.openvino.weights import (
    COMPRESSED_FORMATS,
    Bfloat16Weights,
    Float32Weights,
    GroupedWeights,
    WeightFormat,
)
from card.engines.options import MAX_PASS_ROWS, EngineOptions
from card.engines.phases import phase
from card.engines.processor import computes_in_bfloat16, resolve_dtype
from card.engines.row_costs import RowCosts
from card.engines.sessions import (
    SessionEngine,
    check_context,
    kept_lanes,
    kv_size,
    layout_under_masks,
    most_pending,
)

log = logging.getLogger(__name__)

_CODE_BITS = {"int8": 8, "int4": 4}

_SPARE_SESSIONS = 2
"""Sessions of an examination while the engine serves."""

_MOST_COMPRESSED_ROWS = 64
"""Rows of a pass over compressed matrices: from 81 on their product adds up in another order."""


class OpenVinoEngine(SessionEngine[KeyValueCache | PagedCache]):
    """Implements `card.engines.interface.Engine` with a decoder for any pass, some for passes with
    so many rows, or both."""

    def __init__(
        self,
        directory: Path,
        architecture: Architecture,
        compiled: Decoders,
        options: EngineOptions,
        ranked: NDArray[np.int32] | None = None,
        pages: PageMemory | None = None,
        first_page: int = 0,
        compile_more: Callable[[EngineOptions], Decoders] | None = None,
    ) -> None:
        """
        ranked        the only ids that the decoders compute logits of; None: all
        pages         what the decoders refer to if attention is paged
        first_page    of those, which this engine's sessions have
        compile_more  makes the decoders that are to take the place of one for any rows
        """
        self.directory = directory
        kv, layout, make_feed = _cache(architecture, options, pages, first_page)
        super().__init__(architecture, options, kv, layout)
        self._compiled = compiled
        self._ranked = ranked
        self._pages = pages
        self._compile_more = compile_more

        def make_runner(decoder: CompiledDecoder, padding: Padding) -> Runner:
            ranks = options.grows_trees
            return Runner(
                decoder, architecture, kv, make_feed, ranks=ranks, ranked=ranked, padding=padding
            )

        self._make_runner = make_runner
        self._fixed: Decoders = {}
        self._adopted: tuple[Runners, int] | None = None
        self.passes_made = 0
        wanted = (ANY_ROWS, *options.graph_rows)
        self._decoders: Decoders = {rows: compiled[rows] for rows in wanted if rows in compiled}
        self._runners = Runners(self._decoders, make_runner)

    @classmethod
    def load(
        cls,
        directory: Path,
        options: EngineOptions,
        *,
        any_rows: bool = False,
    ) -> OpenVinoEngine:
        """Load a Hugging Face directory or a GGUF file. Raises `EngineError` saying what does not
        fit.

        any_rows  whether a target's paged attention begins with one decoder for any rows
                  (`later.Exchange`)
        """
        architecture = read_architecture(directory)
        check_context(directory, architecture, options)
        options = replace(options, paged=options.paged or options.grows_trees)
        checkpoint: Checkpoint = open_checkpoint(directory, architecture)
        if bits := _CODE_BITS.get(options.dtype):
            checkpoint = QuantisedCheckpoint(checkpoint, bits, options.weight_group)
            _tell_wide_groups(directory, architecture, options.weight_group)
        elif not (options.compressed and checkpoint.is_grouped):
            options = replace(options, dtype=resolve_dtype(options.dtype))
        weights = weight_format(options, checkpoint.matrices_are)
        options = replace(options, compressed=weights.compressed)
        log.info(
            "%s: matrices stored as %s are kept as %s, passes are computed in %s",
            *(directory, checkpoint.matrices_are, weights.name, pass_dtype(options)),
        )
        if thread_limit() is None:
            options = replace(options, threads_alone=0)
        ranked = None
        if options.grows_trees:
            ranked = read_draft_vocabulary(directory, architecture.vocabulary)
        pages = None
        if options.paged:
            pages = PageMemory(architecture, _pages(options), kv_type(options))
        with phase("read", directory):
            decoder = build_decoder(
                architecture,
                checkpoint,
                DecoderOptions(
                    weights=weights,
                    kv_type=kv_type(options),
                    positions=options.context + MAX_PASS_ROWS,
                    ranks=options.grows_trees,
                    pages=pages,
                    ranked=ranked,
                ),
            )
        size = int(checkpoint.values * weights.itemsize)

        def compile_with(options: EngineOptions) -> Decoders:
            with phase("compile", directory):
                return compile_decoders(decoder, architecture, weights, size, options)

        exchanges = any_rows and options.paged and not options.grows_trees
        if not (exchanges and options.graph_rows):
            compiled = compile_with(options)
            return cls(directory, architecture, compiled, options, ranked, pages)
        compiled = compile_with(replace(options, graph_rows=()))
        return cls(
            *(directory, architecture, compiled, options, ranked, pages), compile_more=compile_with
        )

    def reconfigured(self, options: EngineOptions) -> OpenVinoEngine:
        """The same weights with other buffers (used while calibrating). Where attention is paged,
        both have the same pages: use this engine no more."""
        before = self.options
        same_graphs = (options.paged, options.compressed, options.grows_trees) == (
            before.paged,
            before.compressed,
            before.grows_trees,
        )
        # With paged attention, decoders for some rows may have taken the place of that for any.
        compiled = not self._compiled.keys().isdisjoint((ANY_ROWS, *options.graph_rows))
        pages = self._pages
        fits = pages is None or _pages(options) <= pages.pages
        if not (same_graphs and compiled and fits):
            return self.load(self.directory, options)
        if pages is not None:
            pages.give_back()
        return OpenVinoEngine(
            *(self.directory, self.architecture, self._compiled, options, self._ranked, pages),
            compile_more=self._compile_more,
        )

    # --- exchanging decoders -------------------------------------------------------------------

    @property
    def awaits_decoders(self) -> bool:
        """Whether it computes all passes with a decoder for any rows, for now."""
        return bool(self.options.graph_rows) and self._compile_more is not None

    def likeness(self) -> OpenVinoEngine:
        return self._on_spare_pages(self._compiled)

    def with_fixed_rows(self, threads_alone: int) -> OpenVinoEngine:
        assert self._compile_more is not None
        self._fixed = self._compile_more(replace(self.options, threads_alone=threads_alone))
        return self._on_spare_pages(self._fixed, threads_alone)

    def _on_spare_pages(self, compiled: Decoders, threads_alone: int = 0) -> OpenVinoEngine:
        options = replace(
            self.options,
            sessions=_SPARE_SESSIONS,
            kept_tokens=0,
            threads_alone=threads_alone,
        )
        beside = OpenVinoEngine(
            *(self.directory, self.architecture, compiled, options, self._ranked, self._pages),
            first_page=_pages(self.options) - _spare_pages(self.options),
        )
        beside.row_invariant = True
        return beside

    def adopt(self, threads_alone: int) -> None:
        """Compute with the decoders of `with_fixed_rows` from the next pass on. Another thread may
        be computing one now."""
        self._adopted = Runners(self._fixed, self._make_runner), threads_alone
        _unload_raw(self._fixed)  # under load, costs are not known for long

    def _take_adopted(self) -> None:
        if self._adopted is None:
            return
        self._runners, threads_alone = self._adopted
        self._compiled = self._decoders = self._fixed
        self._compile_more = None
        self.options = replace(self.options, threads_alone=threads_alone)
        self._adopted = None

    def settle(self, threads_alone: int, costs: RowCosts) -> None:
        self._take_adopted()
        self.options = replace(self.options, threads_alone=threads_alone)
        self.know_costs(costs)

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
        is_fixed = ANY_ROWS not in self._decoders or self.awaits_decoders
        return min(most, max(self.options.graph_rows)) if is_fixed else most

    @property
    def costed_rows(self) -> tuple[int, ...]:
        """Those of its decoders, to which all others are padded, unless one takes any for good."""
        if ANY_ROWS in self._decoders and not self.awaits_decoders:
            return super().costed_rows
        return tuple(sorted(self.options.graph_rows))

    @property
    def dtype(self) -> str:
        return self.options.dtype

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
        runner = self._runners.of(this)
        # Until a load has found that bits are the same on more threads, none but those are used.
        runner.run(this, batch, self.threads, exactly=not self.row_invariant)
        return self._logits(batch, runner)

    def close_session(self, session: int) -> None:
        if isinstance(self._kv, PagedCache):
            self._kv.release(session)
        super().close_session(session)

    def know_costs(self, costs: RowCosts) -> None:
        super().know_costs(costs)
        self._runners.know_costs(costs)
        _unload_raw(self._decoders)

    def _logits(self, batch: Sequence[SequenceTokens], runner: Runner) -> list[Logits]:
        """Copies, for the next pass overwrites the outputs: of all sessions at once where these ask
        for whole rows."""
        found: list[Logits] = []
        whole: NDArray[np.float32] | None = None
        at = 0
        for rows in batch:
            part = slice(at, at + rows.wanted)
            if self._ranked is not None or (rows.ranking is not None and self.options.grows_trees):
                wanted = (part, slice(rows.ranking.count if rows.ranking else 1))
                ids = runner.output("ids")[wanted].astype(np.int64)
                found.append(RankedIds(ids, runner.output("log_probabilities")[wanted].copy()))
            else:
                if whole is None:
                    whole = runner.output("logits")[: sum(other.wanted for other in batch)].copy()
                found.append(ArrayLogits(whole[part]))
            at += rows.wanted
        return found


class ArrayLogits:
    """Logits of one session's rows, [rows, vocabulary] float32."""

    def __init__(self, values: NDArray[np.float32]) -> None:
        self._values = values

    def row(self, index: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self._values[index]
        return row

    def best(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        raise TypeError(
            "only an engine whose sessions hold growing trees ranks (SequenceTokens.ranking)"
        )


class RankedIds:
    """The likeliest ids of one session's rows, [rows, best], and their log-probabilities."""

    def __init__(self, ids: NDArray[np.int64], log_probabilities: NDArray[np.float32]) -> None:
        self._ids = ids
        self._log_probabilities = log_probabilities

    def row(self, index: int) -> NDArray[np.float32]:
        raise TypeError(
            "only the likeliest ids of these rows were asked for (SequenceTokens.ranking)"
        )

    def best(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return self._ids, self._log_probabilities


def weight_format(options: EngineOptions, matrices_are: str) -> WeightFormat:
    """How an engine of these options stores the matrices of a checkpoint.

    matrices_are  as of `Checkpoint`
    """
    memory = WeightMemory()
    dense: WeightFormat
    dense = Bfloat16Weights(memory) if computes_in_bfloat16() else Float32Weights(memory)
    if options.dtype in ("auto", *_CODE_BITS):
        return GroupedWeights(dense) if options.compressed else dense
    stored = COMPRESSED_FORMATS.get(matrices_are)
    if options.dtype == "float32" and options.compressed and stored is not None:
        return stored(memory)
    return Float32Weights(memory) if options.dtype == "float32" else Bfloat16Weights(memory)


def _tell_wide_groups(directory: Path, a: Architecture, group: int) -> None:
    """Log which rows take another group than the settings ask for."""
    widths = {a.hidden, a.heads * a.head_size, a.intermediate}
    if whole := sorted(width for width in widths if group_of(width, group) != group):
        log.warning(
            "%s: weight_group %d does not divide rows of %s weights: the whole row is one group, "
            "which is less exact",
            *(directory, group, " and ".join(map(str, whole))),
        )


def _unload_raw(decoders: Decoders) -> None:
    """Drop weights that only compiling and first passes read."""
    for decoder in decoders.values():
        decoder.memory.unload()


def _pages(options: EngineOptions) -> int:
    """Pages that an engine of these options needs, with those for an examination beside it."""
    lanes, places = kv_size(options)
    spare = _branch_pages(options) if options.grows_trees else _spare_pages(options)
    return (lanes + kept_lanes(options)) * places // PAGE + spare


def _spare_pages(options: EngineOptions) -> int:
    _, places = kv_size(options)
    return _SPARE_SESSIONS * places // PAGE


def _branch_pages(options: EngineOptions) -> int:
    """Every pending entry of a tree may need a page."""
    return options.sessions * most_pending(options)


def _cache(
    architecture: Architecture,
    options: EngineOptions,
    pages: PageMemory | None,
    first_page: int,
) -> tuple[KeyValueCache | PagedCache, Layout, Callable[[Inputs, Padding], Feed]]:
    """A KV cache, where rows stand in it, and what tells a graph so."""
    lanes, places = kv_size(options)
    lanes += kept_lanes(options)
    if pages is not None:
        if options.grows_trees:
            paged = PagedCache(pages, lanes, places, branching=_branch_pages(options))
            branches = BranchLayout(paged, options.sessions, most_pending(options))
            return paged, branches, partial(PagedFeed, paged)
        paged = PagedCache(pages, lanes, places, first_page)
        return paged, PageLayout(options.sessions, options.row_multiple), partial(PagedFeed, paged)
    kv = KeyValueCache(architecture, lanes, places, kv_type(options))
    return kv, layout_under_masks(kv, options), partial(MaskedFeed, architecture)

"""Turns a checkpoint into compiled decoders."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from card.engines.architecture import Architecture, read_architecture
from card.engines.checkpoints import (
    Checkpoint,
    QuantisedCheckpoint,
    SmoothedCheckpoint,
    group_of,
    kept_lines,
    open_checkpoint,
    worth_smoothing,
)
from card.engines.draft_vocabulary import read_draft_vocabulary
from card.engines.interface import EngineError
from card.engines.openvino.decoder import DecoderBuilder
from card.engines.openvino.graph import (
    Decoders,
    compile_decoders,
    kv_type,
    pass_dtype,
    thread_limit,
)
from card.engines.openvino.memory import PageMemory, WeightMemory, pages_needed
from card.engines.openvino.nodes import ANY_ROWS
from card.engines.openvino.weights import (
    COMPRESSED_FORMATS,
    Bfloat16Weights,
    Float32Weights,
    GroupedWeights,
    WeightFormat,
)
from card.engines.options import MAX_PASS_ROWS, EngineOptions, check_context, taps_of
from card.engines.phases import phase
from card.engines.processor import ONEDNN_LIMIT, computes_in_bfloat16, resolve_dtype

log = logging.getLogger(__name__)

_MOST_WITH_FIXED_ROWS = 1 << 28
"""Most weights of a model with decoders for fixed numbers of rows. Each such decoder holds its own
scales, a bit for each weight, so eight of them take a byte for each weight. They spare work of each
operator: a fifth of a pass of a small model, up to 9 % of one of Llama 3.2 1B's shape."""
_CODE_BITS = {"int8": 8, "int4": 4}
_NO_PRODUCT = "could not create a primitive descriptor for the inner product"
"""What oneDNN says."""


@dataclass(frozen=True, slots=True)
class DecoderModel:
    """The part that engines with the same weights and different sessions share.

    directory     the checkpoint's directory, or its file
    ranked        the only ids with computed logits; None: all ids
    pages         memory of the KV cache, to which the decoders refer
    compile_more  compiles the decoders that replace the one for any rows; None: there are none
    """

    directory: Path
    architecture: Architecture
    decoders: Decoders
    pages: PageMemory
    ranked: NDArray[np.int32] | None = None
    compile_more: Callable[[EngineOptions], Decoders] | None = None

    def decoders_for(self, options: EngineOptions) -> Decoders:
        """The decoder for any rows, and those for the options' rows."""
        wanted = (ANY_ROWS, *options.graph_rows)
        return {rows: self.decoders[rows] for rows in wanted if rows in self.decoders}

    def fits(self, options: EngineOptions) -> bool:
        """Whether the model has the decoders and pages of an engine of these options."""
        return pages_needed(options) <= self.pages.pages and bool(self.decoders_for(options))

    def with_fixed_rows(self, options: EngineOptions) -> DecoderModel:
        """The model with decoders for the options' rows in place of the one for any rows."""
        assert self.compile_more is not None
        return replace(self, decoders=self.compile_more(options), compile_more=None)

    def unload_raw(self) -> None:
        """Drop the weights that only compilation and first passes read."""
        for decoder in self.decoders.values():
            decoder.memory.unload()


def load_model(
    directory: Path, options: EngineOptions, *, any_rows: bool
) -> tuple[DecoderModel, EngineOptions]:
    """Load a Hugging Face directory or a GGUF file; also returns the options, restricted to what
    the model and this machine support. Raises `EngineError` naming what does not fit.

    any_rows  whether a target with decoders for fixed numbers of rows begins with one for any rows
    """
    architecture = read_architecture(directory)
    check_context(directory, architecture, options)
    _check_computed(directory, options)
    checkpoint: Checkpoint = open_checkpoint(directory, architecture)
    if bits := _CODE_BITS.get(options.dtype):
        checkpoint = QuantisedCheckpoint(checkpoint, bits, options.weight_group)
        _tell_wide_groups(directory, architecture, options.weight_group)
    elif not (options.compressed and checkpoint.is_grouped):
        options = replace(options, dtype=resolve_dtype(options.dtype))
    elif options.dtype == "auto" and architecture.is_plain and worth_smoothing(checkpoint):
        checkpoint = SmoothedCheckpoint(checkpoint, architecture, options.smoothing)
        log.info("%s: small matrices are stored in eight bits, smoothed", directory)
    if options.graph_rows and checkpoint.values > _MOST_WITH_FIXED_ROWS:
        options = replace(options, graph_rows=())
        log.info("%s: one decoder takes passes of any rows, as the model is large", directory)
    weights = weight_format(options, checkpoint.matrices_are)
    options = replace(options, compressed=weights.compressed)
    log.info(
        "%s: matrices stored as %s are kept as %s, passes are computed in %s",
        *(directory, checkpoint.matrices_are, weights.name, pass_dtype(options)),
    )
    if checkpoint.is_grouped and options.dtype == "auto":
        for line in kept_lines(checkpoint.kinds, architecture.layers):
            log.info("%s: %s", directory, line)
    exchanges = any_rows and not options.grows_trees and bool(options.graph_rows)
    if exchanges or thread_limit() is None:  # more threads are checked with the later decoders
        options = replace(options, threads_alone=0)
    ranked = None
    if options.grows_trees:
        ranked = read_draft_vocabulary(directory, architecture.vocabulary)
    pages = PageMemory(architecture, pages_needed(options), kv_type(options))
    with phase("read", directory):
        decoder = DecoderBuilder(
            architecture,
            checkpoint,
            weights,
            pages,
            positions=options.context + MAX_PASS_ROWS,
            ranks=options.grows_trees,
            ranked=ranked,
            taps=taps_of(architecture, options),
        ).build()
    if isinstance(checkpoint, SmoothedCheckpoint):
        options = replace(options, smoothing=checkpoint.smoothing)

    def compile_with(options: EngineOptions) -> Decoders:
        with phase("compile", directory):
            try:
                return compile_decoders(decoder, weights, options)
            except RuntimeError as error:
                if _NO_PRODUCT not in str(error):
                    raise
                raise _no_product(directory, options) from error

    decoders = compile_with(replace(options, graph_rows=()) if exchanges else options)
    compile_more = compile_with if exchanges else None
    return DecoderModel(directory, architecture, decoders, pages, ranked, compile_more), options


def _no_product(directory: Path, options: EngineOptions) -> EngineError:
    """OpenVINO chooses a product by what the processor has, oneDNN by what it may use of it."""
    limit = os.environ.get(ONEDNN_LIMIT)
    role = "draft" if options.grows_trees else "target"
    remedy = f"set {role}.dtype: float32" if limit is None else f"unset {ONEDNN_LIMIT} ({limit})"
    return EngineError(
        f"{directory}: OpenVINO cannot multiply by matrices in codes with the instructions that "
        f"oneDNN may use here; {remedy}"
    )


def _check_computed(directory: Path, options: EngineOptions) -> None:
    """Refuse bfloat16 on a processor without instructions for it, as OpenVINO's attention needs."""
    if options.dtype == "bfloat16" and not computes_in_bfloat16():
        role = "draft" if options.grows_trees else "target"
        raise EngineError(
            f"{directory}: {role}.dtype is bfloat16, and this processor has neither AVX512-BF16 "
            f"nor AMX to compute in it; set {role}.dtype: float32, or auto"
        )


def weight_format(options: EngineOptions, matrices_are: str) -> WeightFormat:
    """The storage of matrices in an engine of these options.

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
    """Log rows with another group size than the settings ask for."""
    widths = {a.hidden, a.heads * a.head_size, a.intermediate}
    if whole := sorted(width for width in widths if group_of(width, group) != group):
        log.warning(
            "%s: weight_group %d does not divide rows of %s weights: the whole row is one group, "
            "which is less exact",
            *(directory, group, " and ".join(map(str, whole))),
        )

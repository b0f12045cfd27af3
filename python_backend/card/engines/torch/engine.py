"""The torch engine on a processor: an eager decoder, the reference that tests compare with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from card.engines.architecture import read_architecture
from card.engines.interface import EngineError, Logits, SequenceTokens, own_rows, wanted_rows
from card.engines.options import MAX_PASS_ROWS, Dtype, EngineOptions, check_context, taps_of
from card.engines.processor import packs_bfloat16, resolve_dtype
from card.engines.sessions import SessionEngine, kept_lanes, lane_places, most_pending
from card.engines.torch.decoder import Decoder, KeyValueCache, Linear
from card.engines.torch.logits import TensorLogits
from card.engines.torch.paths import PathLayout
from card.engines.torch.weights import load_weights


class TorchEngine(SessionEngine):
    """Implements `card.engines.interface.Engine` with torch operators, one after another."""

    device = torch.device("cpu")

    def __init__(self, decoder: Decoder, options: EngineOptions) -> None:
        lanes, places = options.sessions + kept_lanes(options), lane_places(options)
        self._kv = KeyValueCache(decoder.architecture, lanes, places, decoder.dtype)
        self._paths = PathLayout(self._kv, options.sessions, most_pending(options))
        super().__init__(decoder.architecture, options, self._kv, self._paths)
        self.dtype = decoder.dtype
        self._decoder = decoder

    @classmethod
    def load(cls, directory: Path, options: EngineOptions) -> TorchEngine:
        """Load a Hugging Face directory. Raises `EngineError` saying what does not fit."""
        architecture = read_architecture(directory)
        check_context(directory, architecture, options)
        dtype = _torch_dtype(options.dtype)
        weights = load_weights(directory, architecture, dtype, Linear, cls.device)
        taps = taps_of(architecture, options)
        return cls(Decoder(architecture, weights, options.context + MAX_PASS_ROWS, taps), options)

    def reconfigured(self, options: EngineOptions) -> TorchEngine:
        """The same weights with other buffers (used while calibrating)."""
        return TorchEngine(self._decoder, options)

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        threads = self.threads(alone=alone)
        if threads and threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        with torch.inference_mode():
            this = self._paths.plan(batch)
            output, states = self._decoder.forward(this, self._kv, self.options.row_multiple)
        return [
            TensorLogits(output[at], rows.ranking, None if states is None else states[own])
            for own, (rows, at) in zip(own_rows(batch), wanted_rows(batch), strict=True)
        ]


def _torch_dtype(wanted: Dtype) -> torch.dtype:
    dtype = resolve_dtype(wanted)
    if dtype not in ("bfloat16", "float32"):
        raise EngineError(f"the torch engine does not compute in {dtype}; engine: openvino does")
    if dtype == "bfloat16" and not packs_bfloat16():
        raise EngineError(
            "torch cannot multiply in bfloat16 on this processor, which lacks AVX-512; "
            "set dtype: float32, or auto"
        )
    return torch.bfloat16 if dtype == "bfloat16" else torch.float32

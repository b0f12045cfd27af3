"""The torch engine: an eager decoder over laid-out buffers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.architecture import Architecture, read_architecture
from card.engines.interface import EngineError, Logits, Ranking, SequenceTokens
from card.engines.logits import wanted_rows
from card.engines.options import MAX_PASS_ROWS, Dtype, EngineOptions
from card.engines.processor import packs_bfloat16, resolve_dtype
from card.engines.sessions import (
    SessionEngine,
    check_context,
    kept_lanes,
    kv_size,
    layout_under_masks,
)
from card.engines.torch.decoder import Decoder
from card.engines.torch.kv import KeyValueCache
from card.engines.torch.linear import Linear
from card.engines.torch.ranking import rank
from card.engines.torch.weights import load_weights

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class TorchEngine(SessionEngine[KeyValueCache]):
    """Implements `card.engines.interface.Engine` with torch operators, one after another."""

    def __init__(
        self,
        architecture: Architecture,
        decoder: Decoder,
        options: EngineOptions,
        dtype: torch.dtype,
    ) -> None:
        lanes, places = kv_size(options)
        kv = KeyValueCache(architecture, lanes + kept_lanes(options), places, dtype)
        super().__init__(architecture, options, kv, layout_under_masks(kv, options))
        self.dtype = dtype
        self._decoder = decoder

    @classmethod
    def load(cls, directory: Path, options: EngineOptions) -> TorchEngine:
        """Load a Hugging Face directory. Raises `EngineError` saying what does not fit."""
        architecture = read_architecture(directory)
        check_context(directory, architecture, options)
        dtype = _torch_dtype(options.dtype)
        if options.threads:
            torch.set_num_threads(options.threads)
        weights = load_weights(
            directory, architecture, dtype, lambda stored: Linear(stored.weight, stored.bias)
        )
        decoder = Decoder(architecture, weights, dtype, options.context + MAX_PASS_ROWS)
        return cls(architecture, decoder, options, dtype)

    def reconfigured(self, options: EngineOptions) -> TorchEngine:
        """The same weights with other buffers (used while calibrating)."""
        return TorchEngine(self.architecture, self._decoder, options, self.dtype)

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        threads = self.threads(alone=alone)
        if threads and threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        with torch.inference_mode():
            output = self._decoder.forward(self._layout.plan(batch), self._kv)
        return [TensorLogits(output[at], rows.ranking) for rows, at in wanted_rows(batch)]

    def commit_kv(
        self, session: int, confirmed: Sequence[int], surviving: Sequence[int] = ()
    ) -> None:
        with torch.inference_mode():
            super().commit_kv(session, confirmed, surviving)


class TensorLogits:
    """Logits of one session's rows, [rows, vocabulary]."""

    def __init__(self, values: Tensor, ranking: Ranking | None = None) -> None:
        self._values = values
        self._ranking = ranking

    def row(self, index: int) -> NDArray[np.float32]:
        return self._values[index].float().numpy()

    def best(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        if self._ranking is None:
            raise ValueError("no ranking was asked for (SequenceTokens.ranking)")
        with torch.inference_mode():
            ids, log_probabilities = rank(self._values, self._ranking)
        return ids.numpy(), log_probabilities.numpy()


def _torch_dtype(wanted: Dtype) -> torch.dtype:
    dtype = resolve_dtype(wanted)
    if dtype not in _DTYPES:
        raise EngineError(f"the torch engine does not compute in {dtype}; engine: openvino does")
    if dtype == "bfloat16" and not packs_bfloat16():
        raise EngineError(
            "torch cannot multiply in bfloat16 on this processor, which lacks AVX-512; "
            "set dtype: float32, or auto"
        )
    return _DTYPES[dtype]

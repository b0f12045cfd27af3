"""The torch engine: a loaded decoder, its sessions, and what was measured at load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines.interface import EngineError, Logits, Rows
from card.engines.torch.architecture import Architecture, read_architecture
from card.engines.torch.attention import EXTENT_MULTIPLE
from card.engines.torch.chains import ChainLayout
from card.engines.torch.decoder import Decoder
from card.engines.torch.kv import KeyValueCache
from card.engines.torch.layout import Layout, rounded_up
from card.engines.torch.trees import TreeLayout
from card.engines.torch.weights import load_weights

MAX_PASS_ROWS = 256
"""Most rows that one session may have in one pass (a prefill chunk)."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to run a checkpoint.

    context       positions per session
    sessions      most sessions at once
    branches      most root-to-leaf paths per pass (chains); 0: a growing tree instead
    pending       most unconfirmed entries of a growing tree
    dtype         ``auto`` is bfloat16 where the processor computes in it, else float32
    row_multiple  rows of a chain are padded to a multiple of this
    """

    context: int
    sessions: int
    branches: int = 1
    pending: int = 0
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    row_multiple: int = 1


class TorchEngine:
    """Implements `card.engines.interface.Engine` on a processor."""

    def __init__(
        self,
        architecture: Architecture,
        decoder: Decoder,
        options: EngineOptions,
        dtype: torch.dtype,
    ) -> None:
        self.architecture = architecture
        self.options = options
        self.dtype = dtype
        self.row_invariant = False
        self.row_costs_ms: dict[int, float] = {}
        self._decoder = decoder
        self._kv, self._layout = _lay_out(architecture, options, dtype)

    @classmethod
    def load(cls, directory: Path, options: EngineOptions) -> TorchEngine:
        """Load a Hugging Face directory. Raises `EngineError` saying what does not fit."""
        architecture = read_architecture(directory)
        if options.context > architecture.context:
            raise EngineError(
                f"{directory}: the model was built for {architecture.context} positions; "
                f"limits.context_tokens asks for {options.context}"
            )
        dtype = choose_dtype(options.dtype)
        weights = load_weights(directory, architecture, dtype)
        decoder = Decoder(architecture, weights, dtype, options.context + MAX_PASS_ROWS)
        return cls(architecture, decoder, options, dtype)

    def reconfigured(self, options: EngineOptions) -> TorchEngine:
        """The same weights with other buffers (used while calibrating)."""
        return TorchEngine(self.architecture, self._decoder, options, self.dtype)

    @property
    def vocabulary(self) -> int:
        return self.architecture.vocabulary

    @property
    def context(self) -> int:
        return self.options.context

    @property
    def kv_bytes_per_session(self) -> int:
        """Bytes of KV cache that one session takes."""
        return self._kv.bytes_per_lane * max(1, self.options.branches)

    def open_session(self) -> int:
        return self._layout.open()

    def close_session(self, session: int) -> None:
        self._layout.close(session)

    def length(self, session: int) -> int:
        return self._layout.length(session)

    def forward(self, batch: Sequence[Rows]) -> list[Logits]:
        with torch.inference_mode():
            output = self._decoder.forward(self._layout.plan(batch), self._kv)
        found: list[Logits] = []
        at = 0
        for rows in batch:
            count = len(rows.tokens) if rows.logits is None else rows.logits
            found.append(TensorLogits(output[at : at + count]))
            at += count
        return found

    def keep(self, session: int, confirmed: Sequence[int], surviving: Sequence[int] = ()) -> None:
        with torch.inference_mode():
            self._layout.keep(session, confirmed, surviving)


class TensorLogits:
    """Logits of one session's rows, [rows, vocabulary]."""

    def __init__(self, values: Tensor) -> None:
        self._values = values

    def row(self, index: int) -> NDArray[np.float32]:
        return self._values[index].float().numpy()

    def best(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        with torch.inference_mode():
            values = torch.log_softmax(self._values, dim=-1, dtype=torch.float32)
            best = values.topk(min(count, values.shape[-1]), dim=-1)
        return best.indices.numpy(), best.values.numpy()


def _lay_out(
    architecture: Architecture, options: EngineOptions, dtype: torch.dtype
) -> tuple[KeyValueCache, Layout]:
    # Padding and pending entries may stand behind the last position of the context.
    if options.branches:
        places = rounded_up(options.context + MAX_PASS_ROWS, EXTENT_MULTIPLE)
        kv = KeyValueCache(architecture, options.sessions * options.branches, places, dtype)
        return kv, ChainLayout(kv, options.sessions, options.branches, options.row_multiple)
    pending = max(options.pending, MAX_PASS_ROWS)
    places = rounded_up(options.context + pending, EXTENT_MULTIPLE)
    kv = KeyValueCache(architecture, options.sessions, places, dtype)
    return kv, TreeLayout(kv, options.sessions, pending)


def choose_dtype(wanted: str) -> torch.dtype:
    """bfloat16 where the processor multiplies in it, else float32; or what is asked for."""
    if wanted == "float32":
        return torch.float32
    if wanted == "bfloat16" or _computes_in_bfloat16():
        return torch.bfloat16
    return torch.float32


def _computes_in_bfloat16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())

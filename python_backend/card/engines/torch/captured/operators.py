"""Passes of torch's operators under masks: what runs where there are no kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from card.engines.layout import Pass
from card.engines.options import EngineOptions
from card.engines.sessions import kept_lanes, kv_size, layout_under_masks
from card.engines.torch.captured.decoder import CapturedDecoder
from card.engines.torch.captured.kv import DeviceKeyValueCache
from card.engines.torch.captured.shapes import PassBuffer, PassShape, fill, shape_of


class OperatorPasses:
    """Implements `arithmetic.Arithmetic` with torch's operators."""

    def __init__(
        self, decoder: CapturedDecoder, options: EngineOptions, dtype: torch.dtype
    ) -> None:
        lanes, places = kv_size(options)
        self.kv = DeviceKeyValueCache(
            decoder.architecture, lanes, places, dtype, decoder.device, kept_lanes(options)
        )
        self.layout = layout_under_masks(self.kv, options)
        self._decoder = decoder
        self._row_multiple = options.row_multiple

    def shape_of(self, this: Pass) -> PassShape:
        return shape_of(this, self.kv, self._row_multiple)

    def arrays(self, shape: PassShape, device: torch.device, *, pinned: bool) -> PassBuffer:
        return PassBuffer.empty(shape, device, pinned=pinned)

    def fill(self, arrays: PassBuffer, this: Pass) -> None:
        fill(arrays, this, self.kv)

    def forward(self, arrays: PassBuffer, logits: Tensor | None) -> None:
        tile = arrays.shape.attended if self._row_multiple == 1 else self._row_multiple
        self._decoder.forward(arrays, self.kv, tile, logits)

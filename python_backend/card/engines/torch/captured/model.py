"""One model's weights on a device, and what computes with them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from card.engines.architecture import Architecture
from card.engines.options import EngineOptions
from card.engines.torch.captured.arithmetic import Arithmetic
from card.engines.torch.captured.decoder import CapturedDecoder
from card.engines.torch.captured.operators import OperatorPasses
from card.engines.torch.linear import TiledLinear
from card.engines.torch.weights import StoredLinear, Weights

if TYPE_CHECKING:
    from card.engines.torch.captured.kernels.decoder import KernelDecoder
    from card.engines.torch.captured.ranking import DeviceRanking


@dataclass(frozen=True)
class DeviceModel:
    """Weights that are loaded once, whichever way they are used.

    positions  of the rotary tables
    """

    architecture: Architecture
    weights: Weights[StoredLinear]
    dtype: torch.dtype
    device: torch.device
    positions: int

    def arithmetic(self, options: EngineOptions) -> Arithmetic[Any, Any]:
        """Buffers of their own around the same weights."""
        if not options.kernels:
            return OperatorPasses(self._operators, options, self.dtype)
        from card.engines.torch.captured.kernels.passes import PathPasses

        return PathPasses(self._kernels, options, self.dtype)

    def ranking(self, options: EngineOptions, pool: Any) -> DeviceRanking | None:
        """By kernels; None: torch's operators rank.

        pool  handle of the memory that graphs share
        """
        if not options.kernels:
            return None
        from card.engines.torch.captured.ranking import DeviceRanking

        return DeviceRanking(self.device, pool)

    @cached_property
    def _operators(self) -> CapturedDecoder:
        weights = self.weights.through(lambda stored: TiledLinear(stored.weight, stored.bias))
        return CapturedDecoder(self.architecture, weights, self.dtype, self.device, self.positions)

    @cached_property
    def _kernels(self) -> KernelDecoder:
        # Triton need not be there.
        from card.engines.torch.captured.kernels.decoder import KernelDecoder
        from card.engines.torch.captured.kernels.products import SkinnyLinear

        count = _multiprocessors(self.device)
        weights = self.weights.through(
            lambda stored: SkinnyLinear(stored.weight, stored.bias, count)
        )
        return KernelDecoder(self.architecture, weights, self.dtype, self.device, self.positions)


def _multiprocessors(device: torch.device) -> int:
    """A processor, which interprets kernels for tests, has so many that sums are split."""
    if device.type == "cpu":
        return 8
    return torch.cuda.get_device_properties(device).multi_processor_count

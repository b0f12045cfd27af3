"""Keys and values in pages that the graph reads and writes in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from card.engines.architecture import Architecture
from card.engines.layout import Pass
from card.engines.openvino.elements import ELEMENTS
from card.engines.openvino.paged.attention import PAGE


class PagedCache:
    """Keys and values [layers, lanes * pages, kv_heads, PAGE, head_size], zero at first; the pages
    of a lane lie one after another. The system gives memory for a page when it is first written, so
    a lane takes what its longest text took.

    places  of a lane, a multiple of PAGE
    """

    def __init__(self, architecture: Architecture, lanes: int, places: int, kind: ov.Type) -> None:
        a = architecture
        self.kind = kind
        self.lanes = lanes
        self.pages_per_lane = places // PAGE
        shape = (a.layers, lanes * self.pages_per_lane, a.kv_heads, PAGE, a.head_size)
        self._buffers = {name: np.zeros(shape, ELEMENTS[kind]) for name in ("keys", "values")}

    @property
    def bytes_per_lane(self) -> int:
        return sum(buffers.nbytes for buffers in self._buffers.values()) // self.lanes

    def tensors(self) -> dict[str, ov.Tensor]:
        """The graph's inputs; they share memory with the cache."""
        return {
            f"{name}.{layer}": ov.Tensor(part, list(part.shape), self.kind)
            for name, buffers in self._buffers.items()
            for layer, part in enumerate(buffers)
        }

    def store(self, this: Pass, output: Callable[[str], NDArray[Any]]) -> None:
        """The graph has done it."""

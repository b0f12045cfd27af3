"""Keys and values in pages that the graph reads and writes in place."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino.op import Constant

from card.engines.architecture import Architecture
from card.engines.layout import Pass
from card.engines.openvino.nodes import ELEMENTS, Node

PAGE = 32
"""Places of a page; the operator of the graph knows no other size on a processor."""

_KINDS = ("keys", "values")


class PageMemory:
    """Keys and values [layers, pages, kv_heads, PAGE, head_size], zero at first, which a compiled
    graph refers to: engines with other lanes around the same graph divide the same pages.

    The system gives memory for a page when it is first written. The graph keeps an address and not
    this object: whoever computes with the one holds the other.
    """

    def __init__(self, architecture: Architecture, pages: int, kind: ov.Type) -> None:
        a = architecture
        self.kind = kind
        self.pages = pages
        shape = (a.layers, pages, a.kv_heads, PAGE, a.head_size)
        size = math.prod(shape) * ELEMENTS[kind].itemsize
        self._memory = {name: mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE) for name in _KINDS}
        self._buffers: dict[str, NDArray[Any]] = {
            name: np.frombuffer(memory, ELEMENTS[kind]).reshape(shape)
            for name, memory in self._memory.items()
        }

    def of_layer(self, layer: int) -> tuple[Node, Node]:
        """Keys and values [pages, kv_heads, PAGE, head_size] of a layer, for its attention.

        They are constants, although the attention writes into them: an input of the body of an If
        would be copied in every pass. The plugin would widen those of float16 into memory of its
        own, were it not told to keep them.
        """
        keys, values = (
            Constant(ov.Tensor(part[layer], list(part[layer].shape), self.kind), shared_memory=True)
            for part in self._buffers.values()
        )
        for constant in (keys, values):
            constant.get_rt_info()["keep_const_precision_0"] = ""
        return keys, values

    def copy(self, first: int, count: int, to: int) -> None:
        """Copy so many pages from `first` on to those from `to` on."""
        for buffers in self._buffers.values():
            buffers[:, to : to + count] = buffers[:, first : first + count]

    def give_back(self) -> None:
        """Return the memory of all pages to the system; they are zero again."""
        for memory in self._memory.values():
            memory.madvise(mmap.MADV_DONTNEED)


class PagedCache:
    """Pages divided among lanes; those of a lane lie one after another. A lane takes as much memory
    as its longest text took.

    places      of a lane, a multiple of PAGE
    first_page  where the first lane begins
    """

    def __init__(self, memory: PageMemory, lanes: int, places: int, first_page: int = 0) -> None:
        self._memory = memory
        self.lanes = lanes
        self.pages_per_lane = places // PAGE
        self.first_page = first_page
        self.pages = memory.pages

    def tensors(self) -> dict[str, ov.Tensor]:
        """None: the graph refers to the pages by itself."""
        return {}

    def store(self, this: Pass, output: Callable[[str], NDArray[Any]]) -> None:
        """The graph has done it."""

    def copy(self, source: int, start: int, stop: int, lanes: range, to: int) -> None:
        """Copy places [start, stop) of lane `source`, which are whole pages, to `lanes`, from place
        `to` on, where a page begins."""
        first, count = self._page(source, start), (stop - start) // PAGE
        for lane in lanes:
            self._memory.copy(first, count, self._page(lane, to))

    def _page(self, lane: int, place: int) -> int:
        """Where that place of a lane begins."""
        return self.first_page + lane * self.pages_per_lane + place // PAGE

"""Keys and values in pages that the graph reads and writes in place."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino.op import Constant

from card.engines.architecture import Architecture
from card.engines.interface import EngineError
from card.engines.openvino.nodes import Node
from card.engines.options import EngineOptions
from card.engines.sessions import kept_lanes, lane_places, most_pending

PAGE = 32
"""Places of a page; the only size that the graph's operator supports on a processor."""

SPARE_SESSIONS = 2
"""Sessions of an examination while the engine serves."""

_KINDS = ("keys", "values")
_NONE = -1
_ELEMENTS: dict[ov.Type, np.dtype[Any]] = {
    ov.Type.bf16: np.dtype(np.int16),
    ov.Type.f16: np.dtype(np.float16),
    ov.Type.f32: np.dtype(np.float32),
}
"""NumPy dtypes for the element types of a KV cache. NumPy lacks bfloat16; this module only copies
its bits."""


class PageMemory:
    """Keys and values [layers, pages, kv_heads, PAGE, head_size], zero at first. A compiled graph
    refers to them; engines with different lanes around the same graph divide the pages.

    The system allocates a page when it is first written. The graph keeps only an address, so an
    engine that uses the graph must hold this object too.
    """

    def __init__(self, architecture: Architecture, pages: int, kind: ov.Type) -> None:
        a = architecture
        self.kind = kind
        self.pages = pages
        shape = (a.layers, pages, a.kv_heads, PAGE, a.head_size)
        size = math.prod(shape) * _ELEMENTS[kind].itemsize
        try:
            self._memory = {name: mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE) for name in _KINDS}
        except OSError as error:
            raise EngineError(
                f"the system has no {2 * size / 2**30:.0f} GiB for the pages of a KV cache "
                f"({error}); lower cache.slots, cache.nodes or limits.context_tokens"
            ) from error
        self._buffers: dict[str, NDArray[Any]] = {
            name: np.frombuffer(memory, _ELEMENTS[kind]).reshape(shape)
            for name, memory in self._memory.items()
        }

    def of_layer(self, layer: int) -> tuple[Node, Node]:
        """Keys and values [pages, kv_heads, PAGE, head_size] of a layer, for its attention.

        They are constants, although the attention writes into them, because an input of an If's
        body would be copied in every pass. A mark keeps the plugin from converting float16 ones
        into its own memory.
        """
        keys, values = (
            Constant(ov.Tensor(part[layer], list(part[layer].shape), self.kind), shared_memory=True)
            for part in self._buffers.values()
        )
        for constant in (keys, values):
            constant.get_rt_info()["keep_const_precision_0"] = ""
        return keys, values

    def duplicate(self, sources: Sequence[int], copies: Sequence[int]) -> None:
        """Copy what pages hold to others."""
        for part in self._buffers.values():
            part[:, copies] = part[:, sources]

    def give_back(self) -> None:
        """Return the memory of all pages to the system; they are zero again."""
        for memory in self._memory.values():
            memory.madvise(mmap.MADV_DONTNEED)


class PagedCache:
    """The table of the lanes' pages. A copy of whole pages shares them, so keeping a text takes no
    more memory.

    first_page  first page of the sessions
    """

    page = PAGE

    def __init__(self, memory: PageMemory, options: EngineOptions, first_page: int = 0) -> None:
        self._memory = memory
        self.table: NDArray[np.int32] = np.full(_table_shape(options), _NONE, np.int32)
        """[lanes, pages of a lane], numbers of pages; lanes for kept texts come last."""
        self._holders = [0] * memory.pages
        self._free = list(range(first_page, first_page + pages_of(options)))[::-1]

    @property
    def pages_of_lane(self) -> int:
        return int(self.table.shape[1])

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def copy(self, source: int, start: int, stop: int, lane: int, to: int) -> None:
        """Let `lane` share places [start, stop) of lane `source` as its places from `to` on; all
        three are multiples of a page."""
        for offset in range((stop - start) // PAGE):
            at = source, start // PAGE + offset
            self._put((lane, to // PAGE + offset), int(self.table[at]))

    def take(self) -> int:
        """Take a free page for a path of a tree; it may move to a lane later."""
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def give_back(self, pages: Iterable[int]) -> None:
        """Free the pages of paths."""
        for page in pages:
            self._holders[page] = 0
            self._free.append(page)

    def duplicate(self, sources: Sequence[int], copies: Sequence[int]) -> None:
        """Copy what pages hold to others."""
        self._memory.duplicate(sources, copies)

    def release(self, lane: int) -> None:
        """Free the pages of a lane when its text has ended."""
        for page in np.flatnonzero(self.table[lane] != _NONE).tolist():
            self._put((lane, page), _NONE)

    def _put(self, at: tuple[int, int], page: int) -> None:
        before = int(self.table[at])
        if page != _NONE:
            self._holders[page] += 1
        if before != _NONE:
            self._holders[before] -= 1
            if self._holders[before] == 0:
                self._free.append(before)
        self.table[at] = page


def pages_of(options: EngineOptions) -> int:
    """Pages of an engine's own sessions: one for each page of a lane, and those for trees."""
    return math.prod(_table_shape(options)) + options.sessions * _tree_pages(options)


def pages_needed(options: EngineOptions) -> int:
    """All pages, with those for an examination beside a serving target."""
    if options.grows_trees:
        return pages_of(options)
    return pages_of(options) + pages_of(examining(options))


def examining(options: EngineOptions) -> EngineOptions:
    """Options of the small engine that is examined while one of `options` serves."""
    return replace(options, sessions=SPARE_SESSIONS, kept_tokens=0)


def _table_shape(options: EngineOptions) -> tuple[int, int]:
    """Number of lanes (one for each session, and those for kept texts) and pages of a lane."""
    return options.sessions + kept_lanes(options), lane_places(options) // PAGE


def _tree_pages(options: EngineOptions) -> int:
    """Pages for a session's tree. Every entry of a growing tree may need one. A path of a query's
    subtree needs two beside those of its lane: a copy, and a page that its rows begin."""
    return most_pending(options) if options.grows_trees else 2 * options.paths

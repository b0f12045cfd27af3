"""Keys and values in pages that the graph reads and writes in place."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino.op import Constant

from card.engines.architecture import Architecture
from card.engines.interface import EngineError
from card.engines.layout import Pass
from card.engines.openvino.nodes import ELEMENTS, Node

PAGE = 32
"""Places of a page; the operator of the graph knows no other size on a processor."""

_KINDS = ("keys", "values")
_NONE = -1


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
        try:
            self._memory = {name: mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE) for name in _KINDS}
        except OSError as error:
            raise EngineError(
                f"the system has no {2 * size / 2**30:.0f} GiB for the pages of a KV cache "
                f"({error}); lower cache.slots, cache.nodes or limits.context_tokens"
            ) from error
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

    def duplicate(self, sources: Sequence[int], copies: Sequence[int]) -> None:
        """Copy what pages hold to others."""
        for part in self._buffers.values():
            part[:, copies] = part[:, sources]

    def give_back(self) -> None:
        """Return the memory of all pages to the system; they are zero again."""
        for memory in self._memory.values():
            memory.madvise(mmap.MADV_DONTNEED)


class PagedCache:
    """Pages that lanes look up in a table. A copy of whole pages shares them, so a text takes no
    more memory for being kept.

    lanes       all, those for kept texts too
    places      of a lane, a multiple of PAGE
    first_page  of those that the lanes have, one for each page of a lane
    branching   pages more, for branches of trees
    """

    page = PAGE

    def __init__(
        self,
        memory: PageMemory,
        lanes: int,
        places: int,
        first_page: int = 0,
        branching: int = 0,
    ) -> None:
        self._memory = memory
        shape = (lanes, places // PAGE)
        self.table: NDArray[np.int32] = np.full(shape, _NONE, np.int32)
        """[lanes, pages of a lane], which page is there."""
        self._writable = np.zeros(shape, np.bool_)
        self._holders = [0] * memory.pages
        self._free = list(range(first_page, first_page + self.table.size + branching))[::-1]

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def tensors(self) -> dict[str, ov.Tensor]:
        """None: the graph refers to the pages by itself."""
        return {}

    def store(self, this: Pass, output: Callable[[str], NDArray[Any]]) -> None:
        """The graph has done it."""

    def make_writable(self, lane: NDArray[np.int64] | int, places: NDArray[np.int64]) -> None:
        """Give lanes pages of their own where a pass writes. Nothing that is shared is confirmed
        there: confirmed places are never written again."""
        pages = places // PAGE
        writable = self._writable[lane, pages]
        if writable.all():
            return
        lanes = np.broadcast_to(lane, pages.shape)
        for at in set(zip(lanes[~writable].tolist(), pages[~writable].tolist(), strict=True)):
            self._put(at, self._free.pop())
            self._writable[at] = True

    def copy(self, source: int, start: int, stop: int, lanes: range, to: int) -> None:
        """Let `lanes` share places [start, stop) of lane `source`, which are whole pages. They are
        places from `to` on there, where a page begins."""
        for lane in lanes:
            for offset in range((stop - start) // PAGE):
                at = source, start // PAGE + offset
                self._put((lane, to // PAGE + offset), int(self.table[at]))
                self._writable[at] = False

    def take(self) -> int:
        """A page for a branch, which a lane may have later."""
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def give_back(self, pages: Iterable[int]) -> None:
        """Nobody needs these branches."""
        for page in pages:
            self._holders[page] = 0
            self._free.append(page)

    def duplicate(self, sources: Sequence[int], copies: Sequence[int]) -> None:
        """Copy what pages hold to others."""
        self._memory.duplicate(sources, copies)

    def release(self, lane: int) -> None:
        """The text of a lane has ended."""
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
        self._writable[at] = False

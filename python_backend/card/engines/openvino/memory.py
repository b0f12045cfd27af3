"""Memory that compiled graphs refer to: weights, and the pages of a KV cache.

A graph keeps only addresses, so an engine that uses a graph must hold these objects too.

The plugin packs most weights anew and never reads the given ones again. They are given in a file
that has no name: the system reads from the file what is asked for later, so the weights need not
stay in memory.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Sequence
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

_PART = 64 << 20
"""Bytes of the file that are mapped at once, or more for a larger constant."""
_ALIGNMENT = 64


class WeightMemory:
    """Graphs keep addresses into this memory, so an engine with such a graph must hold this object.
    Where no file can be had, it is memory like other.

    directory  of the file; a service's own temporary files lie in memory
    """

    def __init__(self, directory: str = "/var/tmp") -> None:
        self._directory = directory
        self._held: list[mmap.mmap] = []
        self._in_file: list[mmap.mmap] = []
        self._left = np.zeros(0, np.uint8)

    def constant(self, values: NDArray[Any], kind: ov.Type, shape: Sequence[int]) -> Constant:
        """One of the bytes of `values`."""
        size = values.nbytes
        room = -(-size // _ALIGNMENT) * _ALIGNMENT
        if room > len(self._left):
            self._held.append(self._map(max(room, _PART)))
            self._left = np.frombuffer(self._held[-1], np.uint8)
        taken, self._left = self._left[:size], self._left[room:]
        taken[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return Constant(ov.Tensor(taken, list(shape), kind), shared_memory=True)

    def unload(self) -> None:
        """Release memory until its next read."""
        for part in self._in_file:
            part.madvise(mmap.MADV_DONTNEED)

    def _map(self, size: int) -> mmap.mmap:
        try:
            with tempfile.TemporaryFile(dir=self._directory) as file:
                os.posix_fallocate(file.fileno(), 0, size)  # or a full disk would end the process
                part = mmap.mmap(file.fileno(), size)
        except OSError:
            return mmap.mmap(-1, size)
        self._in_file.append(part)
        return part


PAGE = 32
"""Places of a page; the only size that the graph's operator supports on a processor."""

SPARE_SESSIONS = 2
"""Sessions of an examination while the engine serves."""

_KINDS = ("keys", "values")
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

    buffers  keys and values as arrays

    The system allocates a page when it is first written.
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
        self.buffers: dict[str, NDArray[Any]] = {
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
            for part in self.buffers.values()
        )
        for constant in (keys, values):
            constant.get_rt_info()["keep_const_precision_0"] = ""
        return keys, values

    def give_back(self) -> None:
        """Return the memory of all pages to the system; they are zero again."""
        for memory in self._memory.values():
            memory.madvise(mmap.MADV_DONTNEED)


def pages_of(options: EngineOptions) -> int:
    """Pages of an engine's own sessions: one for each page of a lane, and those for trees."""
    return math.prod(table_shape(options)) + options.sessions * _tree_pages(options)


def pages_needed(options: EngineOptions) -> int:
    """All pages, with those for an examination beside a serving target."""
    if options.grows_trees:
        return pages_of(options)
    return pages_of(options) + pages_of(examining(options))


def examining(options: EngineOptions) -> EngineOptions:
    """Options of the small engine that is examined while one of `options` serves."""
    return replace(options, sessions=SPARE_SESSIONS, kept_tokens=0)


def table_shape(options: EngineOptions) -> tuple[int, int]:
    """Number of lanes (one for each session, and those for kept texts) and pages of a lane."""
    return options.sessions + kept_lanes(options), lane_places(options) // PAGE


def _tree_pages(options: EngineOptions) -> int:
    """Pages for a session's tree. Every entry of a growing tree may need one. A path of a query's
    subtree needs two beside those of its lane: a copy, and a page that its rows begin."""
    return most_pending(options) if options.grows_trees else 2 * options.paths

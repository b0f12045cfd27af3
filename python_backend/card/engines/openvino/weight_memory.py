"""Weights as the graph was given them, in a file that has no name.

The plugin packs most matrices anew and never reads these again. Out of a file the system reads what
is asked for all the same, so they need not stay in memory.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino.op import Constant

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

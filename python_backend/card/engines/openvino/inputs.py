"""The input tensors of a graph; each tensor is reused while its shape stays the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

_REAL_INPUTS = frozenset({"temperature", "noise"})
"""Inputs of float32; all others are int32."""


class Inputs:
    """Reuses tensors, because making and binding a tensor takes longer than writing into it.

    All shapes of an input share one block of memory, which grows. Separate blocks of changing sizes
    would leave holes, and the process would grow for many minutes.
    """

    def __init__(self, request: ov.InferRequest) -> None:
        self._request = request
        self._memory: dict[str, NDArray[Any]] = {}
        self._arrays: dict[str, NDArray[Any]] = {}

    def array(self, name: str, *shape: int) -> NDArray[Any]:
        """The memory of an input, for writing. It holds the values last written in this shape; they
        are undefined if another shape was used since."""
        array = self._arrays.get(name)
        if array is None or array.shape != shape:
            kind = ov.Type.f32 if name in _REAL_INPUTS else ov.Type.i32
            array = self._block(name, math.prod(shape)).reshape(shape)
            self._request.set_tensor(name, ov.Tensor(array, list(shape), kind))
            self._arrays[name] = array
        return array

    def _block(self, name: str, size: int) -> NDArray[Any]:
        """The first `size` elements of an input's memory."""
        memory = self._memory.get(name)
        if memory is None or memory.size < size:
            kind = np.float32 if name in _REAL_INPUTS else np.int32
            memory = np.zeros(1 << max(0, size - 1).bit_length(), kind)
            self._memory[name] = memory
        return memory[:size]

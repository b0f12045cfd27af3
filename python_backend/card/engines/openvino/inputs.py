"""The tensors that a graph reads its inputs from; each stays while its shape does."""

from __future__ import annotations

from typing import Any

import openvino as ov
from numpy.typing import NDArray

_REAL_INPUTS = frozenset({"mask", "temperature", "noise"})
"""Inputs of float32; all others are int32."""


class Inputs:
    """Making and binding a tensor takes longer than writing into it."""

    def __init__(self, request: ov.InferRequest) -> None:
        self._request = request
        self._arrays: dict[str, NDArray[Any]] = {}

    def array(self, name: str, *shape: int) -> NDArray[Any]:
        """The memory of an input, to be written; it holds what was last written in this shape."""
        array = self._arrays.get(name)
        if array is None or array.shape != shape:
            kind = ov.Type.f32 if name in _REAL_INPUTS else ov.Type.i32
            tensor = ov.Tensor(kind, list(shape))
            self._request.set_tensor(name, tensor)
            self._arrays[name] = array = tensor.data
        return array

    def put(self, name: str, values: NDArray[Any]) -> None:
        self.array(name, *values.shape)[...] = values

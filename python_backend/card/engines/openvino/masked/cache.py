"""Static key/value buffers that the graph reads in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from card.engines.architecture import Architecture
from card.engines.layout import Destination, Pass, Stretch
from card.engines.openvino.nodes import ELEMENTS

_OUTPUTS = ("keys", "values")


class KeyValueCache:
    """Keys and values [layers, lanes, kv_heads, places, head_size], zero at first. The system gives
    memory for places when they are first written.

    A place that nobody confirmed may hold any keys, and any values that are finite: masks keep it
    out.
    """

    def __init__(self, architecture: Architecture, lanes: int, places: int, kind: ov.Type) -> None:
        a = architecture
        self.kind = kind
        self._places = places
        self._layers = a.layers
        shape = (a.layers, lanes, a.kv_heads, places, a.head_size)
        self.keys: NDArray[Any] = np.zeros(shape, ELEMENTS[kind])
        self.values: NDArray[Any] = np.zeros(shape, ELEMENTS[kind])
        self._heads = np.arange(a.kv_heads)

    @property
    def places(self) -> int:
        return self._places

    def tensors(self) -> dict[str, ov.Tensor]:
        """The graph's inputs; they share memory with the cache."""
        found = {}
        for name, buffers in (("keys", self.keys), ("values", self.values)):
            for layer in range(self._layers):
                part = buffers[layer]
                found[f"{name}.{layer}"] = ov.Tensor(part, list(part.shape), self.kind)
        return found

    def store(self, this: Pass, output: Callable[[str], NDArray[Any]]) -> None:
        """Keep what a pass computed; `output` gives what the graph did by name."""
        rows = slice(len(this.tokens))
        keys, values = (output(name)[:, rows].view(ELEMENTS[self.kind]) for name in _OUTPUTS)
        self.write(this.destination, keys, values)

    def write(self, destination: Destination, keys: NDArray[Any], values: NDArray[Any]) -> None:
        """Store what a pass computed, [layers, rows, kv_heads, head_size]."""
        if isinstance(destination, Stretch):
            places = slice(destination.place, destination.place + keys.shape[1])
            self.keys[:, destination.lane, :, places] = keys.swapaxes(1, 2)
            self.values[:, destination.lane, :, places] = values.swapaxes(1, 2)
            return
        lane, place = destination.lane[:, None], destination.place[:, None]
        source = slice(None) if destination.source is None else destination.source
        self.keys[:, lane, self._heads, place] = keys[:, source]
        self.values[:, lane, self._heads, place] = values[:, source]

    def copy(self, source: int, start: int, stop: int, lanes: range, to: int) -> None:
        """Copy places [start, stop) of lane `source` to `lanes`, from place `to` on."""
        places = slice(to, to + stop - start)
        for lane in lanes:
            if lane != source:
                for buffers in (self.keys, self.values):
                    buffers[:, lane, :, places] = buffers[:, source, :, start:stop]

    def gather(self, lane: int, start: int, sources: NDArray[np.int64]) -> None:
        """Move the entries at `start + sources` of a lane to `start`, `start + 1`, ..."""
        for buffers in (self.keys, self.values):
            buffers[:, lane, :, start : start + len(sources)] = buffers[:, lane][
                :, :, start + sources
            ]

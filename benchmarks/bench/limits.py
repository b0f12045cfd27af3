"""What this machine allows a target step: memory bandwidth, and the step's own linear layers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench.engines import CheckpointEngine, let_torch_use
from bench.linears import linears_of, shapes_of
from card.engines.processor import resolve_dtype

_WEIGHT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.1, "int4": 0.6, "auto": 0.75}
"""Of a weight, scales and all; ``auto`` stays where codes of a file are computed as they are."""
_KV_BYTES = {"float32": 4, "bfloat16": 2}
_REPEATS = 9
_COPIED_BYTES = 1 << 27
"""Larger than any cache on the way to memory."""


@dataclass(frozen=True)
class Limits:
    """Of an autoregressive step on so many threads.

    copy_gb_s     bytes read and written per second by a copy far larger than the caches
    read_gb_s     bytes read per second, again and again from a buffer as large as the weights, of
                  which the caches may hold a part
    weight_bytes  that a step reads
    kv_bytes      that it reads at the context of the middle of a text
    linears_ms    all linear layers of a step back to back
    """

    threads: int
    copy_gb_s: float
    read_gb_s: float
    weight_bytes: int
    kv_bytes: int
    linears_ms: float

    @property
    def floor_ms(self) -> float:
        """No step can be faster than its bytes at the better of both bandwidths."""
        bandwidth = max(self.copy_gb_s, self.read_gb_s) * 1e9
        return 1e3 * (self.weight_bytes + self.kv_bytes) / bandwidth


class LimitsMeter:
    """Measures again and again, between the texts; the medians count."""

    def __init__(self, engine: CheckpointEngine, context: int) -> None:
        self._threads = engine.options.threads
        a, options = engine.architecture, engine.options
        weights = sum(inputs * outputs for inputs, outputs in shapes_of(a))
        of_sixteen_bits = options.compressed and options.dtype == "float32"
        stored = "bfloat16" if of_sixteen_bits else options.dtype
        self._weight_bytes = int(_WEIGHT_BYTES[stored] * weights)
        kv = "float32" if options.compressed else resolve_dtype(options.dtype)
        self._kv_bytes = _KV_BYTES.get(kv, 2) * 2 * a.layers * a.kv_heads * a.head_size * context
        self._read = torch.ones(self._weight_bytes // 4)
        self._copied = torch.ones(_COPIED_BYTES // 4)
        self._copy = torch.empty_like(self._copied)
        self._run_linears = linears_of(engine)
        self._found: list[tuple[float, float, float]] = []

    def measure(self) -> None:
        let_torch_use(self._threads)
        copied = 2 * self._copied.nbytes / _fastest_s(lambda: self._copy.copy_(self._copied))
        read = self._read.nbytes / _fastest_s(self._read.sum)
        self._found.append((copied / 1e9, read / 1e9, 1e3 * _median_s(self._run_linears)))

    def limits(self) -> Limits:
        copy, read, linears = (
            statistics.median(values) for values in zip(*self._found, strict=True)
        )
        sizes = self._weight_bytes, self._kv_bytes
        return Limits(self._threads, copy, read, *sizes, linears_ms=linears)


def _times_s(work: Callable[[], object]) -> list[float]:
    work()
    found = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return found


def _fastest_s(work: Callable[[], object]) -> float:
    return min(_times_s(work))


def _median_s(work: Callable[[], object]) -> float:
    return statistics.median(_times_s(work))

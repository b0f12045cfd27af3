"""A computation over static buffers: captured as a CUDA graph where there is one, else called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Replayed:
    """Runs `compute` again and again on whatever its buffers hold.

    The first run calls it operator by operator: libraries set themselves up at their first call,
    which must not be captured. The second run captures it, so that what runs once is never
    captured.

    compute  reads and writes tensors that stay where they are, and synchronises nothing
    pool     handle of the memory that graphs share, for no two of them run at once
    """

    def __init__(self, compute: Callable[[], None], device: torch.device, pool: Any) -> None:
        self._compute = compute
        self._can_capture = device.type == "cuda"
        self._pool = pool
        self._has_run = False
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> None:
        """Queued on a device; done on return on a processor."""
        if not (self._can_capture and self._has_run):
            self._compute()
            self._has_run = True
            return
        if self._graph is None:
            self._graph = self._captured()
        self._graph.replay()

    def _captured(self) -> torch.cuda.CUDAGraph:
        """Every launch of `compute`, none of which runs now."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._compute()
        return graph

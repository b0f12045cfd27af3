"""A computation over static buffers: captured as a CUDA graph where there is one, else called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_WARM_UPS = 2


class Replayed:
    """Runs `compute` again and again on whatever its buffers hold.

    compute  reads and writes tensors that stay where they are, synchronises nothing, and may be
             run twice on the same contents without harm
    pool     handle of the memory that graphs share, for no two of them run at once
    """

    def __init__(
        self,
        compute: Callable[[], None],
        device: torch.device,
        pool: Any,
    ) -> None:
        self._replay = compute
        if device.type != "cuda":
            return
        # Libraries set themselves up at their first call, which must not be captured.
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                compute()
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            compute()
        self._replay = graph.replay

    def run(self) -> None:
        """Queued on a device; done on return on a processor."""
        self._replay()

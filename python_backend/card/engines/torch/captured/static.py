"""Passes of one shape over buffers that stay: captured as a CUDA graph where there is one, else
called."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from card.engines.torch.paths import PathPass

if TYPE_CHECKING:  # Triton need not be there.
    from card.engines.torch.captured.kernels.decoder import KernelDecoder
    from card.engines.torch.captured.kernels.passes import PathBuffer, PathPasses, PathShape

from collections.abc import Callable


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


class StaticPass:
    """What fills, copies and computes passes of a shape. Several may be queued at once.

    logits  [shape.logits, vocabulary] float32 of the last pass; None: none are computed
    tapped  [shape.rows, numbers] bfloat16, its tapped hidden states; None: there are no taps
    """

    def __init__(
        self,
        shape: PathShape,
        passes: PathPasses,
        decoder: KernelDecoder,
        logits: Tensor | None,
        tapped: Tensor | None,
        pool: Any,
    ) -> None:
        self.logits, self.tapped = logits, tapped
        self._shape = shape
        self._passes = passes
        device, kv = decoder.device, passes.kv
        self._on_device = device.type == "cuda"
        self._inputs = inputs = passes.arrays(shape, device, pinned=False)
        self._queued: deque[tuple[PathBuffer, torch.cuda.Event]] = deque()
        """Arrays on the host, oldest first, and when their copy is done."""
        self._host = None if self._on_device else self._made()
        # No reference to itself: what is dropped must free its memory at once.
        self._replayed = Replayed(lambda: decoder.forward(inputs, kv, logits, tapped), device, pool)

    def run(self, this: PathPass, token: Tensor | None = None) -> None:
        """Queue the pass: copy its arrays to the device, compute.

        token  [1] int32 on the device, the token of the first row; None: it is in the pass
        """
        if token is None and self._queued:
            self._queued[-1][1].synchronize()  # or the host would run ahead of a long prompt
        host = self._free()
        self._passes.fill(host, this)
        self._inputs.bytes.copy_(host.bytes, non_blocking=True)
        if self._on_device:
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
            self._queued.append((host, copied))
        if token is not None:
            self._inputs.tokens[:1].copy_(token)
        self._replayed.run()

    def _free(self) -> PathBuffer:
        """Arrays on the host that no queued copy reads."""
        if self._host is not None:
            return self._host
        if self._queued and self._queued[0][1].query():  # type: ignore[no-untyped-call]
            return self._queued.popleft()[0]
        return self._made()

    def _made(self) -> PathBuffer:
        return self._passes.arrays(self._shape, torch.device("cpu"), pinned=self._on_device)

"""Passes of one shape: buffers that stay, and what is computed over them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from card.engines.layout import PathPass
from card.engines.torch.captured.graphs import Replayed

if TYPE_CHECKING:  # Triton need not be there.
    from card.engines.torch.captured.kernels.passes import PathPasses
    from card.engines.torch.captured.kernels.shapes import PathBuffer, PathShape


class StaticPass:
    """What fills, copies and computes passes of a shape. Several may be queued at once.

    logits  [shape.logits, vocabulary] float32 of the last pass; None: none are computed
    tapped  [shape.rows, numbers] bfloat16, its tapped hidden states; None: there are no taps
    """

    def __init__(
        self,
        shape: PathShape,
        passes: PathPasses,
        device: torch.device,
        logits: Tensor | None,
        tapped: Tensor | None,
        pool: Any,
    ) -> None:
        self.logits, self.tapped = logits, tapped
        self._shape = shape
        self._passes = passes
        self._on_device = device.type == "cuda"
        self._inputs = inputs = passes.arrays(shape, device, pinned=False)
        self._queued: deque[tuple[PathBuffer, torch.cuda.Event]] = deque()
        """Arrays on the host, oldest first, and when their copy is done."""
        self._host = None if self._on_device else self._made()
        # No reference to itself: what is dropped must free its memory at once.
        self._replayed = Replayed(lambda: passes.forward(inputs, logits, tapped), device, pool)

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

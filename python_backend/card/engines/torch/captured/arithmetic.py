"""What an engine asks of whatever computes its passes."""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch
from torch import Tensor

from card.engines.layout import Layout, Pass
from card.engines.torch.captured.kv import DeviceBuffers


class FixedShape(Protocol):
    """The sizes of a pass; hashable.

    logits  rows whose logits are computed; 0: none
    """

    @property
    def logits(self) -> int: ...


class Arrays(Protocol):
    """Every array of a pass in one stretch.

    tokens  [rows], a part of it
    """

    @property
    def bytes(self) -> Tensor: ...

    @property
    def tokens(self) -> Tensor: ...


Shape = TypeVar("Shape", bound=FixedShape)
Filled = TypeVar("Filled", bound=Arrays)


class Arithmetic(Protocol[Shape, Filled]):
    """Passes of few fixed shapes over buffers that stay: torch's operators, or kernels."""

    @property
    def kv(self) -> DeviceBuffers: ...

    @property
    def layout(self) -> Layout: ...

    def shape_of(self, this: Pass) -> Shape:
        """The shape that the pass is padded to."""

    def arrays(self, shape: Shape, device: torch.device, *, pinned: bool) -> Filled:
        """Arrays of this shape, to be filled on the host or copied to a device."""

    def fill(self, arrays: Filled, this: Pass) -> None:
        """Write a pass and its padding into arrays on the host."""

    def forward(self, arrays: Filled, logits: Tensor | None) -> None:
        """Write keys, values and logits [shape.logits, vocabulary], if any are wanted."""

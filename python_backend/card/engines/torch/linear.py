"""Linear layers on weights packed once for oneDNN, which halves a small model's step."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from card.engines.processor import multiplies_in_tiles

_PACK_FOR_ROWS = 8
"""Row count that oneDNN optimises the packed order for; results do not depend on it."""

_MOST_ROWS_BESIDE_TILES = 32
"""Rows of a bfloat16 product where the processor has tiles too: oneDNN takes these for more, and
they add up in another order."""


# Overloads looked up once: resolving one costs as much as a small product.
_apply = torch.ops.mkldnn._linear_pointwise.default
_plus = torch.ops.mkldnn._linear_pointwise.binary


class Linear:
    """``y = x W^T + b`` with W [outputs, inputs] packed."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, in_tiles: bool | None = None
    ) -> None:
        """`in_tiles`: whether the processor multiplies bfloat16 so; None: as this one does."""
        self._bias = bias
        in_tiles = multiplies_in_tiles() if in_tiles is None else in_tiles
        beside_tiles = in_tiles and weight.dtype is torch.bfloat16
        self._most_rows = _MOST_ROWS_BESIDE_TILES if beside_tiles else sys.maxsize
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_FOR_ROWS)

    def __call__(self, inputs: Tensor) -> Tensor:
        """[rows, inputs] -> [rows, outputs]."""
        if len(inputs) > self._most_rows:
            return torch.cat([self(part) for part in torch.split(inputs, self._most_rows)])
        return _apply(  # type: ignore[no-any-return]
            inputs, self._weight, self._bias, "none", [], ""
        )

    def plus(self, inputs: Tensor, residual: Tensor) -> Tensor:
        """`self(inputs) + residual` in one operator, rounded once."""
        if len(inputs) > self._most_rows:
            both = (torch.split(states, self._most_rows) for states in (inputs, residual))
            return torch.cat([self.plus(*parts) for parts in zip(*both, strict=True)])
        return _plus(  # type: ignore[no-any-return]
            inputs, residual, self._weight, self._bias, "add"
        )

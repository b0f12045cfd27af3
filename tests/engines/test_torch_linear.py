"""Products of many rows, where a processor's tiles would add them up in another order."""

from __future__ import annotations

import pytest
import torch

from card.engines.processor import packs_bfloat16
from card.engines.torch.decoder import Linear

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not packs_bfloat16(), reason="torch packs no bfloat16 here"),
]


@pytest.mark.parametrize(
    ("dtype", "in_tiles", "most"),
    [(torch.bfloat16, True, 32), (torch.bfloat16, False, 70), (torch.float32, True, 70)],
)
def test_a_bfloat16_product_beside_tiles_has_32_rows_at_most_in_their_order(
    dtype: torch.dtype, in_tiles: bool, most: int
) -> None:
    sizes: list[int] = []

    class Watched(Linear):
        def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
            sizes.append(len(inputs))
            return super().__call__(inputs)

    layer = Watched(torch.randn(48, 64).to(dtype), torch.randn(48).to(dtype), in_tiles)
    inputs = torch.randn(70, 64).to(dtype)
    parts = [70] if most == 70 else [70, 32, 32, 6]
    found = layer(inputs)
    assert sizes == parts
    if most < 70:
        rows = [slice(at, at + 1) for at in range(70)]
        assert torch.equal(found, torch.cat([layer(inputs[row]) for row in rows]))

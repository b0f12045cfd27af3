"""Products of many rows, where a processor's tiles would add them up in another order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from card.engines.processor import packs_bfloat16
from card.engines.torch import linear
from card.engines.torch.linear import Linear

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not packs_bfloat16(), reason="torch packs no bfloat16 here"),
]


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "multiplies_in_tiles", lambda: True)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every product that is computed."""
    rows: list[int] = []
    for name in ("_apply", "_plus"):
        compute = getattr(linear, name)

        def counting(inputs: Tensor, *others: object, compute: object = compute) -> Tensor:
            rows.append(len(inputs))
            return compute(inputs, *others)  # type: ignore[operator,no-any-return]

        monkeypatch.setattr(linear, name, counting)
    return rows


@pytest.mark.usefixtures("tiles")
def test_a_product_beside_tiles_has_32_rows_at_most(recorded: list[int]) -> None:
    layer = Linear(torch.randn(48, 64).bfloat16(), torch.randn(48).bfloat16())
    inputs, residual = torch.randn(70, 64).bfloat16(), torch.randn(70, 48).bfloat16()
    for compute in (layer, lambda states: layer.plus(states, residual)):
        recorded.clear()
        assert compute(inputs).shape == (70, 48)
        assert recorded == [32, 32, 6]


@pytest.mark.usefixtures("tiles")
def test_rows_keep_their_order_and_their_bits() -> None:
    layer = Linear(torch.randn(48, 64).bfloat16())
    inputs, residual = torch.randn(70, 64).bfloat16(), torch.randn(70, 48).bfloat16()
    rows = [slice(at, at + 1) for at in range(70)]
    assert torch.equal(layer(inputs), torch.cat([layer(inputs[row]) for row in rows]))
    alone = torch.cat([layer.plus(inputs[row], residual[row]) for row in rows])
    assert torch.equal(layer.plus(inputs, residual), alone)


def test_float32_and_processors_without_tiles_multiply_at_once(
    recorded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "multiplies_in_tiles", lambda: False)
    Linear(torch.randn(48, 64).bfloat16())(torch.randn(70, 64).bfloat16())
    monkeypatch.setattr(linear, "multiplies_in_tiles", lambda: True)
    Linear(torch.randn(48, 64))(torch.randn(70, 64))
    assert recorded == [70, 70]

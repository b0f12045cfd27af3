"""The bars of `auto` in a sample of the matrix: beside decoding alone and the best fixed way."""

from __future__ import annotations

import pytest
from cells import Cell, measured, sample

FIRST, LATER, BEST = 0.95, 0.96, 0.93


@pytest.mark.parametrize("cell", sample(), ids=str)
def test_auto_in_every_cell_costs_little_and_comes_near_the_best_fixed_way(cell: Cell) -> None:
    shares = measured(cell)
    assert shares.first > FIRST
    assert shares.later > LATER
    assert shares.best > BEST

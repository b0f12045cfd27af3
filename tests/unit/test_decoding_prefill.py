"""How much of a prompt a pass takes, alone and beside streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from card.decoding.prefill import Prefill

CHUNK = 64
NOTHING_MEASURED: dict[int, float] = {}
PROCESSOR = {1: 4.0, 8: 6.5, 16: 10.0, 32: 16.0, 48: 24.0, 64: 32.0}
"""Every row takes its time."""
GPU = {1: 4.0, 64: 4.4}
"""Nearly all of a pass is reading the weights."""
CURVES = [NOTHING_MEASURED, PROCESSOR, GPU]


curves = pytest.mark.parametrize("costs", CURVES, ids=["nothing measured", "processor", "GPU"])


@curves
@given(prompts=st.integers(1, 32), streaming=st.integers(0, 200))
def test_streams_wait_for_a_chunk_at_most_and_prompts_are_read_all_the_same(
    costs: dict[int, float], prompts: int, streaming: int
) -> None:
    each = Prefill(CHUNK, costs).tokens(prompts, streaming)
    assert each >= 1
    assert streaming + prompts * each <= max(CHUNK, streaming + CHUNK // 2)
    assert streaming + prompts * (each + 1) > CHUNK // 2
    if streaming <= Prefill(CHUNK, costs).rows_of_streams and each > 1:
        assert streaming + prompts * each <= CHUNK


@curves
def test_while_nobody_streams_prompts_take_whole_chunks(costs: dict[int, float]) -> None:
    prefill = Prefill(CHUNK, costs)
    assert [prefill.tokens(prompts, 0) for prompts in (1, 2, 3, 100)] == [64, 32, 21, 1]


@pytest.mark.parametrize(
    ("costs", "streaming", "tokens"),
    [
        (PROCESSOR, 1, 31),
        (PROCESSOR, 6, 26),
        (PROCESSOR, 16, 48),  # in half a chunk's rows prompts would be read far more slowly
        (GPU, 1, 63),
        (GPU, 16, 48),
        (NOTHING_MEASURED, 1, 63),
        (PROCESSOR, 64, 32),
    ],
)
def test_half_a_chunk_serves_beside_few_rows_where_each_takes_its_time(
    costs: dict[int, float], streaming: int, tokens: int
) -> None:
    assert Prefill(CHUNK, costs).tokens(1, streaming) == tokens


def test_the_smallest_chunk_is_read_too() -> None:
    assert Prefill(1, PROCESSOR).tokens(1, 5) == 1

"""How much of a prompt a pass takes, alone and beside streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from card.decoding.open_sessions import Prefill
from card.engines.row_costs import CostCurve

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
    prefill = Prefill(CHUNK, costs)
    each = prefill.tokens(prompts, streaming)
    assert each >= 1
    assert streaming + prompts * each <= max(CHUNK, streaming + CHUNK // 2)
    assert streaming + prompts * (each + 1) > CHUNK // 2
    if streaming <= prefill.rows_of_streams(prompts):
        assert streaming + prompts * each <= CHUNK


@given(prompts=st.integers(1, 32), streaming=st.integers(1, 64))
def test_beside_streams_prompts_are_read_nearly_as_fast_as_in_whole_chunks(
    prompts: int, streaming: int
) -> None:
    """However a chunk is divided among them."""

    def tokens_per_ms(each: int) -> float:
        return prompts * each / CostCurve(PROCESSOR).pass_ms(streaming + prompts * each)

    whole = max(1, max(CHUNK // 2, CHUNK - streaming) // prompts)
    read = Prefill(CHUNK, PROCESSOR).tokens(prompts, streaming)
    assert tokens_per_ms(read) / tokens_per_ms(whole) > 0.8 - 1e-9


@curves
def test_while_nobody_streams_prompts_take_whole_chunks(costs: dict[int, float]) -> None:
    prefill = Prefill(CHUNK, costs)
    assert [prefill.tokens(prompts, 0) for prompts in (1, 2, 3, 100)] == [64, 32, 21, 1]

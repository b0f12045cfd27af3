"""Passes of fixed shape over static buffers give what the eager engine gives, bit for bit alike
however they are put together.

On a processor a replay is a call; everything else is what a CUDA device would run.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import tiny_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import forward_rows, random_tokens, read, read_alone
from torch import Tensor

from card.engines import Logits, SequenceTokens
from card.engines.calibration import check_row_invariance, make_row_invariant
from card.engines.options import Dtype, EngineOptions
from card.engines.torch.captured import decoder as captured_decoder
from card.engines.torch.captured.decoder import attend, tree_sum
from card.engines.torch.captured.engine import CapturedEngine
from card.engines.torch.captured.graphs import Replayed

pytestmark = pytest.mark.usefixtures("one_thread")

SESSIONS, BRANCHES, CONTEXT = 3, 2, 400
CLOSE = 2e-4

few = settings(max_examples=8, deadline=None)


def options(dtype: Dtype = "float32", branches: int = BRANCHES) -> EngineOptions:
    pending = 0 if branches else 256
    return EngineOptions(CONTEXT, SESSIONS, branches, pending, dtype=dtype)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama3")
    tiny_models.save(path, "llama3")
    return path


@pytest.fixture(scope="module", params=["float32", "bfloat16", "float16"])
def target(request: pytest.FixtureRequest, directory: Path) -> CapturedEngine:
    engine = make_row_invariant(CapturedEngine.load(directory, options(request.param)))
    assert engine.row_invariant
    return engine


@pytest.mark.parametrize("tile", [32, 64])
def test_wider_tiles_serve_a_device_on_which_narrow_ones_vary(directory: Path, tile: int) -> None:
    """Where rows of one session alone are padded to more than decode together."""
    loaded = CapturedEngine.load(directory, options())
    assert tile in {variant.row_multiple for variant in loaded.variants}
    engine = loaded.reconfigured(replace(loaded.options, row_multiple=tile))
    text = random_tokens(40)
    expected = read_alone(engine, text, [1])
    prefixes = {engine.open_session(): prefix for prefix in (20, 1, 9)}
    batch = [SequenceTokens(session, text[at : at + 3]) for session, at in prefixes.items()]
    for session, prefix in prefixes.items():
        read(engine, session, text[:prefix], [64])
    for (session, prefix), found in zip(prefixes.items(), forward_rows(engine, batch), strict=True):
        assert found.tobytes() == expected[prefix : prefix + 3].tobytes()
        engine.close_session(session)
    assert check_row_invariance(engine)


@given(parts=st.integers(1, 20), behind=st.integers(0, 20), seed=st.integers(0, 9))
def test_places_that_weigh_nothing_change_no_bit_of_a_sum(
    parts: int, behind: int, seed: int
) -> None:
    values = torch.randn(2, parts, 3, generator=torch.Generator().manual_seed(seed))
    longer = torch.cat([values, torch.zeros(2, behind, 3)], dim=1)
    assert torch.equal(tree_sum(longer), tree_sum(values))
    torch.testing.assert_close(tree_sum(values), values.sum(1))


# --- static buffers -------------------------------------------------------------------------------


def test_no_more_shapes_are_kept_than_allowed(directory: Path) -> None:
    text = random_tokens(300)
    engine = CapturedEngine.load(directory, options())
    expected = read_alone(engine, text, [1, 17, 40, 70])
    assert len(engine._passes) > 2
    engine = CapturedEngine(engine._model, engine.options, most_captured=2)
    assert read_alone(engine, text, [1, 17, 40, 70]).tobytes() == expected.tobytes()
    assert len(engine._passes) == 2


class Cuda:
    """Stands in for `torch.cuda` while a graph is captured, and writes down what is asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def CUDAGraph(self) -> Cuda:
        return self

    @contextmanager
    def graph(self, graph: object, pool: object) -> Iterator[None]:
        self.calls.append(f"capture into {pool}")
        yield
        self.calls.append("captured")

    def replay(self) -> None:
        self.calls.append("replay")


def test_a_computation_is_captured_at_its_second_run_and_then_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What runs once, as many passes of a self-check do, is not worth a capture."""
    cuda = Cuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    replayed = Replayed(lambda: cuda.calls.append("compute"), torch.device("cuda:0"), "pool")
    assert cuda.calls == []
    replayed.run()
    assert cuda.calls == ["compute"]
    replayed.run()
    assert cuda.calls[1:] == ["capture into pool", "compute", "captured", "replay"]
    cuda.calls.clear()
    replayed.run()
    replayed.run()
    assert cuda.calls == ["replay", "replay"]


def test_an_engine_that_is_dropped_frees_its_memory_at_once(directory: Path) -> None:
    engine = CapturedEngine.load(directory, options())
    read_alone(engine, random_tokens(10), [4])
    keys = weakref.ref(engine._kv.keys)
    gc.disable()
    try:
        del engine
        assert keys() is None
    finally:
        gc.enable()


def test_the_check_of_rows_ends_when_its_time_is_over(directory: Path) -> None:
    """One comparison is always made."""
    passes: list[int] = []

    class Counted(CapturedEngine):
        examination_s = 0.0

        def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
            passes.append(len(batch))
            return super().forward(batch, alone=alone)

    loaded = CapturedEngine.load(directory, options())
    counted = Counted(loaded._model, replace(loaded.options, row_multiple=16))
    assert check_row_invariance(cast(CapturedEngine, counted))
    assert len(passes) == 9, "eight rows, one by one and at once"


# --- the self-check can fail ----------------------------------------------------------------------


def rounded_by_lanes(
    query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, tile: int
) -> Tensor:
    """A last bit that depends on how many sessions share the pass."""
    return attend(query, keys, values, visible, tile) * (1 + 2**-7 * (len(visible) > 2))


def summed_at_once(
    query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, tile: int
) -> Tensor:
    """A last bit that depends on how many rows are attended."""
    return attend(query, keys, values, visible, tile) * (1 + 2**-7 * (visible.shape[1] > 16))


def without_mask(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, tile: int) -> Tensor:
    return attend(query, keys, values, torch.ones_like(visible), tile)


@pytest.mark.parametrize("broken", [rounded_by_lanes, summed_at_once, without_mask])
def test_the_self_check_finds_attention_that_depends_on_the_pass(
    target: CapturedEngine, monkeypatch: pytest.MonkeyPatch, broken: Callable[..., Tensor]
) -> None:
    assert check_row_invariance(target)
    monkeypatch.setattr(captured_decoder, "attend", broken)
    assert not check_row_invariance(target)

"""The check at load, that rows are independent, can fail: each kind of dependence is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from torch import Tensor
from watched_passes import product_types

from card.engines.calibration import (
    ConfigurableEngine,
    check_row_invariance,
    make_row_invariant,
)
from card.engines.calibration_cache import Calibration
from card.engines.interface import RowCosts
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import Dtype, EngineOptions
from card.engines.processor import computes_in_bfloat16
from card.engines.torch import decoder
from card.engines.torch.decoder import BLOCK, TileTensors, attend
from card.engines.torch.engine import TorchEngine

pytestmark = pytest.mark.usefixtures("one_thread")

Attend = Callable[..., Tensor]


def rounded_by_rows(
    query: Tensor, keys: Tensor, values: Tensor, tile: TileTensors, *more: Any
) -> Tensor:
    """A last bit that depends on how many rows are attended together."""
    return attend(query, keys, values, tile, *more) * (1 + 2**-7 * (len(tile.rows) > 5))


def without_mask(
    query: Tensor, keys: Tensor, values: Tensor, tile: TileTensors, *more: Any
) -> Tensor:
    """Rows that see what stands behind them."""
    return attend(
        query,
        keys,
        values,
        replace(tile, hidden=dict.fromkeys(tile.hidden, torch.tensor(False))),
        *more,
    )


def summed_at_once(
    query: Tensor, keys: Tensor, values: Tensor, tile: TileTensors, *more: Any
) -> Tensor:
    """Far behind the beginning alone, a last bit that depends on the rows of the pass."""
    far = len(tile.places) > 256 and len(tile.rows) > 5
    return attend(query, keys, values, tile, *more) * (1 + 2**-7 * far)


def scaled_beside_others(
    query: Tensor, keys: Tensor, values: Tensor, tile: TileTensors, *more: Any
) -> Tensor:
    """Behind the first block alone, a last bit that depends on whether others share the pass."""
    if len(query) > len(tile.rows):
        values = values.clone()
        values[:, BLOCK:] *= 1 + 2**-7
    return attend(query, keys, values, tile, *more)


def read_as_it_lies(
    query: Tensor, keys: Tensor, values: Tensor, tile: TileTensors, *more: Any
) -> Tensor:
    """A row of a tree that takes the places behind the prefix as they lie."""
    return attend(query, keys, values, replace(tile, places=torch.arange(len(tile.places))), *more)


@pytest.fixture
def unchecked(tmp_path: Path) -> TorchEngine:
    tiny_models.save(tmp_path, "mistral")
    dtype: Dtype = "bfloat16" if computes_in_bfloat16() else "float32"
    options = EngineOptions(context=336, sessions=3, paths=4, dtype=dtype, threads=1)
    return TorchEngine.load(tmp_path, options)


@pytest.mark.parametrize(
    "broken",
    [
        rounded_by_rows,
        without_mask,
        summed_at_once,
        scaled_beside_others,
        read_as_it_lies,
    ],
)
def test_self_check_fails_when_attention_depends_on_the_layout(
    unchecked: TorchEngine, monkeypatch: pytest.MonkeyPatch, broken: Attend
) -> None:
    sound = make_row_invariant(unchecked)
    assert check_row_invariance(sound)
    monkeypatch.setattr(decoder, "attend", broken)
    assert not check_row_invariance(sound)


def test_engine_is_not_marked_when_no_padding_cures_it(
    unchecked: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "attend", without_mask)
    assert not make_row_invariant(unchecked).row_invariant


@pytest.mark.parametrize("spoils", ["nothing", "compressed"])
def test_the_first_way_that_keeps_rows_independent_is_taken_and_remembered(
    tmp_path: Path, spoils: str
) -> None:
    """Matrices that stay compressed are tried first."""
    tiny_models.build(tiny_models.FAMILIES["qwen2"]).bfloat16().save_pretrained(tmp_path)
    options = EngineOptions(context=128, sessions=3, dtype="float32", threads=1, compressed=True)
    tried: list[bool] = []

    def depends_on_it(engine: ConfigurableEngine) -> bool:
        tried.append(engine.options.compressed)
        return not getattr(engine.options, spoils, False) and check_row_invariance(engine)

    engine = make_row_invariant(OpenVinoEngine.load(tmp_path, options), depends_on_it)
    assert engine.row_invariant
    assert tried == sorted(tried, reverse=True)
    stored = {name for one in engine.model.decoders.values() for name in product_types(one.graph)}
    assert stored == ({"f32"} if spoils == "compressed" else {"bf16"})
    found = Calibration.of(engine.options, RowCosts({1: 1.0}))
    assert found.applied_to(options) == engine.options

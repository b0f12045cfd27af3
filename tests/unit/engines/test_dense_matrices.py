"""Matrices of sixteen bits stay so from the file to whoever wants them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_models
import torch
from safetensors.torch import load_file, save_file

from card.engines.architecture import read_architecture
from card.engines.checkpoints import DenseMatrix, open_checkpoint
from card.engines.interface import EngineError

STORED = {torch.bfloat16: np.uint16, torch.float16: np.float16, torch.float32: np.float32}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tiny_models.save(tmp_path, "llama3")
    return tmp_path


def rewrite(directory: Path, dtype: torch.dtype, **changed: float) -> dict[str, torch.Tensor]:
    file = directory / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    for name, value in changed.items():
        tensors[f"model.layers.0.self_attn.{name}.weight"][1, 2] = value
    save_file(tensors, file, {"format": "pt"})
    return tensors


@pytest.mark.parametrize("dtype", list(STORED))
def test_a_matrix_keeps_the_dtype_of_its_file(directory: Path, dtype: torch.dtype) -> None:
    tensors = rewrite(directory, dtype)
    layer = next(iter(open_checkpoint(directory, read_architecture(directory)).layers()))
    stacked = layer.query_key_value.weight
    assert isinstance(stacked, DenseMatrix)
    assert stacked.values.dtype == STORED[dtype]
    parts = [tensors[f"model.layers.0.self_attn.{name}_proj.weight"] for name in "qkv"]
    assert np.array_equal(stacked.dense(), torch.cat(parts).float().numpy())


@pytest.mark.parametrize("dtype", list(STORED))
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_is_refused_by_name(
    directory: Path, dtype: torch.dtype, value: float
) -> None:
    rewrite(directory, dtype, k_proj=value)
    with pytest.raises(EngineError, match=r"k_proj\.weight holds values that are not finite"):
        next(iter(open_checkpoint(directory, read_architecture(directory)).layers()))

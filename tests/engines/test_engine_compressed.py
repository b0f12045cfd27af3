"""Matrices in sixteen bits under passes in float32: kept so, exact, given up where they must be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import torch
from tiny_models import random_tokens, read, read_alone
from transformers import AutoModelForCausalLM
from watched_passes import product_types, recorded_passes

from card.engines import SequenceTokens
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import EngineOptions

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS = EngineOptions(
    context=128, sessions=6, dtype="float32", threads=1, graph_rows=(1, 4, 64), compressed=True
)
TEXT = random_tokens(100)
CLOSE = 1e-4


def checkpoint(directory: Path, dtype: torch.dtype) -> Path:
    tiny_models.build(tiny_models.FAMILIES["qwen2"]).to(dtype).save_pretrained(directory)
    return directory


@pytest.mark.parametrize(
    ("dtype", "stored"), [(torch.bfloat16, "bf16"), (torch.float16, "f16"), (torch.float32, "f32")]
)
def test_matrices_stay_as_they_are_stored_and_nothing_is_lost(
    tmp_path: Path, dtype: torch.dtype, stored: str
) -> None:
    """Should the plugin no longer take the graph for a language model, it unfolds them."""
    any_rows = replace(OPTIONS, graph_rows=())
    engine = OpenVinoEngine.load(checkpoint(tmp_path, dtype), any_rows)
    (decoder,) = engine.model.decoders.values()
    found = product_types(decoder.graph)
    assert found.keys() == {stored}
    if engine.options.compressed:
        assert found[stored] == 4 * engine.architecture.layers + 1
    assert engine.options.compressed is (dtype != torch.float32)
    in_float32 = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    expected = tiny_models.reference_logits(in_float32, TEXT)
    assert np.abs(read_alone(engine, TEXT, [64, 1, 4, 6]) - expected).max() < CLOSE


def test_no_pass_has_more_rows_than_keep_their_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = OpenVinoEngine.load(checkpoint(tmp_path, torch.bfloat16), OPTIONS)
    expected = read_alone(engine, TEXT, [1])
    passes = recorded_passes(monkeypatch)
    sessions = [engine.open_session() for _ in range(6)]
    read(engine, sessions[0], TEXT[:20], [20])
    passes.clear()
    sizes = [16, 14, 16, 16, 40, 15]
    starts = [20, 0, 0, 0, 0, 0]
    batch = [
        SequenceTokens(session, TEXT[start : start + size])
        for session, start, size in zip(sessions, starts, sizes, strict=True)
    ]
    found = engine.forward(batch)
    assert passes == [[16, 14, 16, 16], [40, 15]]
    for logits, start, size in zip(found, starts, sizes, strict=True):
        for row in range(size):
            np.testing.assert_array_equal(logits.row(row), expected[start + row])

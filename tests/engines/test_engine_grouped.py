"""Weights of four and eight bits are computed as they are stored, and rows stay independent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf_models
import numpy as np
import openvino as ov
import pytest
import tiny_models
from numpy.typing import NDArray
from tiny_models import forward_rows, opened, random_tokens, read, read_alone
from watched_passes import product_types

from card.engines.interface import SequenceTokens
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.openvino.nodes import ANY_ROWS
from card.engines.options import Dtype, EngineOptions

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS = EngineOptions(
    context=512,
    sessions=2,
    threads=1,
    threads_alone=2,
    graph_rows=(1, 8, 64),
    compressed=True,
)
TEXT = random_tokens(60)
ROUNDING = 0.05
"""Of the logits' spread: inputs are rounded to eight bits, and these models are sharp."""


def gguf(directory: Path, kind: str) -> Path:
    file = directory / "model.gguf"
    gguf_models.write(file, "llama", kind)
    return file


def hugging_face(directory: Path) -> Path:
    tiny_models.build(gguf_models.FAMILIES["llama"]).save_pretrained(directory)
    return directory


def spread_between(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Root mean square of the difference, as a share of the logits' deviation."""
    return float(np.sqrt(np.mean((one - other) ** 2)) / other.std())


@pytest.mark.parametrize(
    ("kind", "stored"), [("Q4_0", {"u4"}), ("Q4_1", {"u4", "f16", "u8"}), ("Q8_0", {"u8"})]
)
def test_a_gguf_file_is_computed_with_its_own_codes(
    tmp_path: Path, kind: str, stored: set[str]
) -> None:
    file = gguf(tmp_path, kind)
    engine = OpenVinoEngine.load(file, OPTIONS)
    apart = OpenVinoEngine.load(file, replace(OPTIONS, graph_rows=()))
    # Of Q4_1 small matrices are in bytes; the head is not, and its remainders are a product.
    assert product_types(apart.model.decoders[ANY_ROWS].graph).keys() == stored
    unpacked = OpenVinoEngine.load(file, replace(OPTIONS, dtype="float32", compressed=False))
    found, expected = (read_alone(one, TEXT, [32, 1, 4]) for one in (engine, unpacked))
    assert spread_between(found, expected) < ROUNDING


@pytest.mark.parametrize(("dtype", "bits"), [("int8", 8), ("int4", 4)])
@pytest.mark.parametrize("group", [32, 128])
def test_a_checkpoint_is_quantised_at_load(
    tmp_path: Path, dtype: Dtype, bits: int, group: int
) -> None:
    directory = hugging_face(tmp_path)
    engine = OpenVinoEngine.load(directory, replace(OPTIONS, dtype=dtype, weight_group=group))
    apart = replace(OPTIONS, dtype=dtype, weight_group=group, graph_rows=())
    types = product_types(OpenVinoEngine.load(directory, apart).model.decoders[ANY_ROWS].graph)
    assert f"u{bits}" in types
    unpacked = replace(OPTIONS, dtype=dtype, weight_group=group, compressed=False)
    expected = read_alone(OpenVinoEngine.load(directory, unpacked), TEXT, [32, 1, 4])
    assert spread_between(read_alone(engine, TEXT, [32, 1, 4]), expected) < ROUNDING


def test_attention_reads_float16_from_the_memory_of_our_pages(tmp_path: Path) -> None:
    """Not from a widened copy of the plugin's, which would never be given back."""
    engine = OpenVinoEngine.load(gguf(tmp_path, "Q4_1"), OPTIONS)
    pages = engine.model.pages
    assert pages.kind == ov.Type.f16
    with opened(engine) as session:
        read(engine, session, TEXT, [64])
        [known] = forward_rows(engine, [SequenceTokens(session, TEXT[:1])])
        engine.commit_kv(session, [])
        pages.give_back()
        [forgotten] = forward_rows(engine, [SequenceTokens(session, TEXT[:1])])
    assert not np.array_equal(known, forgotten)

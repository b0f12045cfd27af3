"""A GGUF file computes what `transformers` computes with its unpacked weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf_models
import numpy as np
import pytest
import tiny_models
import torch
from gguf import GGUFWriter
from numpy.typing import NDArray
from transformers import LlamaConfig, PreTrainedModel

from card.engines import EngineError
from card.engines.architecture import read_architecture
from card.engines.checkpoints import GroupedMatrix, JoinedMatrix, open_checkpoint
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import EngineOptions
from card.engines.torch.engine import TorchEngine
from model_files.gguf.header import read_header

pytestmark = pytest.mark.usefixtures("one_thread")

CLOSE = 2e-4
"""Largest difference to `transformers` in float32."""
TEXT = tiny_models.random_tokens(60)
OPTIONS = EngineOptions(context=128, sessions=1, dtype="float32")


def difference(
    file: Path,
    model: PreTrainedModel,
    engine_class: type[TorchEngine] | type[OpenVinoEngine] = TorchEngine,
) -> float:
    """Largest difference of a logit to `transformers`."""
    expected = tiny_models.reference_logits(model, TEXT)
    assert expected.std() > 1.0, "logits so small that an error would not show"
    found = tiny_models.read_alone(engine_class.load(file, OPTIONS), TEXT, (32,))
    return float(np.abs(found - expected).max())


@pytest.mark.parametrize("kind", gguf_models.KINDS)
def test_every_type_computes_what_its_unpacked_weights_compute(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "model.gguf"
    model = gguf_models.write(file, "llama", kind)
    checkpoint = open_checkpoint(file, read_architecture(file))
    assert checkpoint.matrices_are == kind
    stays_grouped = isinstance(checkpoint.embedding(), GroupedMatrix)
    assert stays_grouped == (kind not in ("F32", "F16", "BF16"))
    stored = model.get_parameter("model.embed_tokens.weight").detach().numpy()
    np.testing.assert_array_equal(checkpoint.embedding().dense(), stored)
    assert difference(file, model) < CLOSE


@pytest.mark.parametrize("family", gguf_models.FAMILIES)
def test_every_family_computes_what_transformers_computes(tmp_path: Path, family: str) -> None:
    file = tmp_path / "model.gguf"
    model = gguf_models.write(file, family, "Q4_1")
    for engine_class in (TorchEngine, OpenVinoEngine):
        assert difference(file, model, engine_class) < CLOSE


def test_rows_of_query_and_key_are_exactly_those_of_the_model(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    model = gguf_models.write(file, "llama_with_biases", "Q8_0")
    layer = next(open_checkpoint(file, read_architecture(file)).layers())
    for suffix, found in (
        ("weight", layer.query_key_value.weight.dense()),
        ("bias", layer.query_key_value.bias),
    ):
        parts = [f"model.layers.0.self_attn.{part}_proj.{suffix}" for part in "qkv"]
        stored = torch.cat([model.get_parameter(part) for part in parts]).detach().numpy()
        assert found is not None
        np.testing.assert_array_equal(found, stored)


def test_a_stack_of_several_types_keeps_each(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    kinds = {
        "": "Q4_0",
        "attn_v.weight": "Q6_K",
        "token_embd.weight": "Q8_0",
        "output.weight": "F16",
    }
    model = gguf_models.write(file, "llama", kinds)
    checkpoint = open_checkpoint(file, read_architecture(file))
    layer = next(checkpoint.layers())
    assert isinstance(layer.query_key_value.weight, JoinedMatrix)
    assert isinstance(layer.gate_up.weight, GroupedMatrix)
    assert checkpoint.matrices_are == "mixed"
    assert difference(file, model) < CLOSE


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def llama3_divisors() -> NDArray[np.float32]:
    """As llama.cpp's converter writes them, in its words."""
    rope, found = LLAMA3_ROPE, []
    base, context = float(rope["rope_theta"]), float(rope["original_max_position_embeddings"])  # type: ignore[arg-type]
    for i in range(0, 64, 2):
        wavelength = 2 * np.pi * base ** (i / 64)
        if wavelength < context / 4.0:
            found.append(1.0)
        elif wavelength > context / 1.0:
            found.append(8.0)
        else:
            smooth = (context / wavelength - 1.0) / (4.0 - 1.0)
            found.append(1 / ((1 - smooth) / 8.0 + smooth))
    assert {1.0, 8.0} < set(found)
    return np.array(found, np.float32)


def shape(**changes: object) -> LlamaConfig:
    return LlamaConfig(**{**gguf_models.FAMILIES["llama"].to_dict(), **changes})


def test_frequencies_are_divided_as_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"

    def divisors(writer: GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", llama3_divisors())

    config = shape(rope_parameters=LLAMA3_ROPE)
    model = gguf_models.write(file, "llama", "F32", metadata=divisors, config=config)
    assert difference(file, model) < CLOSE


def test_linear_scaling_is_applied(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"

    def linear(writer: GGUFWriter) -> None:
        writer.add_string("llama.rope.scaling.type", "linear")
        writer.add_float32("llama.rope.scaling.factor", 4.0)

    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    model = gguf_models.write(
        file, "llama", "F32", metadata=linear, config=shape(rope_parameters=rope)
    )
    assert difference(file, model) < CLOSE


def tensor(name: str, rows: int = 32) -> Callable[[GGUFWriter], None]:
    return lambda writer: writer.add_tensor(name, np.zeros((rows, 32), np.float32))


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (tensor("blk.0.ffn_gate_inp.weight"), "'blk.0.ffn_gate_inp.weight' is not known"),
        (tensor("blk.0.attn_q_norm.weight"), "'blk.0.attn_q_norm.weight' is not known"),
        (tensor("output_norm.bias"), "'output_norm.bias' is not known"),
        (tensor("blk.2.attn_q.weight"), "a layer 2"),
        (
            lambda writer: writer.add_string("llama.rope.scaling.type", "dynamic"),
            "rope_type 'dynamic' is not supported",
        ),
        (lambda writer: writer.add_uint16("split.count", 3), "llama-gguf-split --merge"),
        (lambda writer: writer.add_key_length(32), "rope.dimension_count is 64"),
        (lambda writer: writer.add_head_count(0), "llama.attention.head_count is 0; allowed"),
        (lambda writer: writer.add_block_count(3), "'blk.2.attn_norm.weight' is missing"),
        (lambda writer: writer.add_feed_forward_length(128), "ffn_down.weight has shape"),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    tmp_path: Path, metadata: Callable[[GGUFWriter], None], said: str
) -> None:
    file = tmp_path / "model.gguf"
    gguf_models.write(file, "llama", "F16", metadata=metadata)
    with pytest.raises(EngineError, match=said) as refusal:
        open_checkpoint(file, read_architecture(file))
    assert str(file) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_other_types_and_families_are_refused_with_what_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    gguf_models.write(file, "llama", {"": "F16", "ffn_up.weight": "TQ1_0"})
    with pytest.raises(EngineError, match=r"ffn_up\.weight is TQ1_0; allowed: F32, .*, Q6_K"):
        open_checkpoint(file, read_architecture(file))
    writer = GGUFWriter(file, "deepseek2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(EngineError, match="'deepseek2' is not supported; allowed: llama, mistral"):
        read_architecture(file)


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    gguf_models.write(file, "llama", "Q4_0")
    architecture = read_architecture(file)
    content = bytearray(file.read_bytes())
    at = read_header(file).tensors["token_embd.weight"].offset
    content[at : at + 2] = np.array([np.inf], np.float16).tobytes()
    file.write_bytes(content)
    with pytest.raises(EngineError, match=r"token_embd\.weight holds values that are not finite"):
        open_checkpoint(file, architecture).embedding()

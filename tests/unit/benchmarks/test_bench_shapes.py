"""Random models of large shapes, and what is refused before any is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from gguf import GGUFWriter
from typer.testing import CliRunner

from bench.shape_models import HEAD_KINDS, SHAPES, Shape, matrices, write_model
from bench.shapes import shapes
from card.engines.architecture import read_architecture
from card.engines.checkpoints import open_checkpoint

_SMALL = Shape(8, 256, 512, 4, 2, 64, tied=True)


def _tokenizer(home: Path) -> Path:
    file = home / "tokenizer.gguf"
    writer = GGUFWriter(file, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<bos>", "<eos>", "a", "b", "ab"])
    writer.add_token_types([3, 3, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("recipe", HEAD_KINDS)
def test_random_model_when_written_is_a_checkpoint_of_usual_weights(
    tmp_path: Path, recipe: str
) -> None:
    file = tmp_path / "model.gguf"
    write_model(file, _SMALL, recipe, _tokenizer(tmp_path), vocabulary=64)
    checkpoint = open_checkpoint(file, read_architecture(file))
    assert checkpoint.embedding().shape == (64, 256)
    for layer in checkpoint.layers():
        for linear in (layer.query_key_value, layer.gate_up, layer.down):
            weights = linear.weight.dense()
            assert 0.3 < weights.std() * weights.shape[1] ** 0.5 < 3


def test_q4_k_m_gives_more_bits_to_the_layers_that_llama_cpp_gives_them() -> None:
    kinds = {name: kind for name, kind, *_ in matrices(SHAPES["1b"], "Q4_K_M", 64)}
    more = [n for n in range(16) if kinds[f"blk.{n}.ffn_down"] == "Q6_K"]
    assert more == [0, 1, 4, 7, 10, 13, 14, 15]
    assert kinds["blk.0.ffn_up"] == "Q4_K"
    assert kinds["token_embd"] == "Q6_K"


def test_types_of_a_shape_that_it_lacks_are_refused_before_a_model_is_written() -> None:
    app = typer.Typer()
    app.command()(shapes)
    found = CliRunner().invoke(app, ["--shape", "8b", "--type", "q4_0,q4_k_m"])
    assert found.exit_code == 2
    assert "shape 8b has Q4_K_M" in found.output.replace("\n", " ")

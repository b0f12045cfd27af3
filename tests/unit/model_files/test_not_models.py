"""A file that is no model is refused by what it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from gguf import GGUFWriter
from real_pair import TARGET, pair_settings

from card.serving.model_files import check_model_files
from model_files import ModelFilesError, model_files_of

LFS = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n"
LEGACY_IMATRIX = bytes([210, 0, 0, 0, 20, 0, 0, 0]) + b"blk.0.attn_q.weight" + bytes(64)
SAFETENSORS = (2).to_bytes(8, "little") + b'{"a": {}}'


def refusal(path: Path) -> str:
    """What the supervisor says before it starts anything."""
    said = check_model_files(pair_settings(target={"path": str(path)}))
    assert said is not None
    assert str(path) in said
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (LFS, "is a pointer of Git LFS"),
        (PAGE, "is a web page"),
        (LEGACY_IMATRIX, "is an importance matrix (imatrix)"),
        (SAFETENSORS, "is a safetensors file: name the directory"),
        (b"PK\x03\x04" + bytes(64), "is a zip archive, as PyTorch writes them"),
        (b"\x1f\x8b\x08" + bytes(64), "is a compressed archive"),
    ],
)
def test_a_file_in_place_of_gguf_is_named(tmp_path: Path, content: bytes, kind: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    assert kind in refusal(file)


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        ({"general.type": "adapter", "adapter.type": "lora"}, "is an adapter (LoRA)"),
        ({"general.type": "imatrix"}, "is an importance matrix (imatrix)"),
        ({"general.type": "mmproj"}, "is a projector for images (mmproj)"),
        ({"general.type": "poem"}, "is a GGUF file of the type 'poem', and no model"),
        ({"tokenizer.ggml.model": "gpt2"}, "holds a vocabulary alone, and no weights"),
    ],
)
def test_a_gguf_file_that_is_no_model_is_named(
    tmp_path: Path, metadata: dict[str, str], kind: str
) -> None:
    file = tmp_path / "model.gguf"
    writer = GGUFWriter(file, "llama")
    for key, value in metadata.items():
        writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert kind in refusal(file)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize(
    ("content", "kind"), [(LFS, "is a pointer of Git LFS"), (PAGE, "is a web page")]
)
def test_a_part_of_a_directory_that_was_not_downloaded_is_named(
    tmp_path: Path, name: str, content: bytes, kind: str
) -> None:
    model = shutil.copytree(TARGET, tmp_path / "model")
    (model / name).write_bytes(content)
    assert f"{name} {kind}" in refusal(model)


def test_a_directory_with_an_adapter_is_named(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    (tmp_path / "adapter_model.safetensors").write_bytes(SAFETENSORS)
    assert "holds an adapter (LoRA), which is no model" in refusal(tmp_path)
    shutil.copy(TARGET / "config.json", tmp_path)
    assert "holds an adapter (LoRA) and no weights" in refusal(tmp_path)


def test_a_directory_with_a_tokenizer_alone_is_named_and_still_tokenizes(tmp_path: Path) -> None:
    """The gateway needs no more than the tokenizer."""
    shutil.copy(TARGET / "tokenizer.json", tmp_path)
    assert "holds a vocabulary alone: config.json and weights are missing" in refusal(tmp_path)
    assert model_files_of(tmp_path).tokenizer().encode("def").ids
    with pytest.raises(ModelFilesError, match="holds a vocabulary alone"):
        model_files_of(tmp_path).config()

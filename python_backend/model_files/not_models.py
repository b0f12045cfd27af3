"""What a file is that was taken for a model, so that a refusal names it."""

from __future__ import annotations

from pathlib import Path

from model_files.interface import ModelFilesError

_LOOKED_AT = 512
"""Bytes of a file's beginning."""

GGUF_TYPES = {
    "adapter": "an adapter (LoRA), which is no model by itself: merge it into its model with "
    "llama.cpp's llama-export-lora, and name the file that this writes",
    "imatrix": "an importance matrix (imatrix) for quantising a model: name the model's own file",
    "mmproj": "a projector for images (mmproj), which is a part of a model: name the file with the "
    "language model",
}
"""What a GGUF file is by its `general.type`, but for models."""


def kind_of(file: Path) -> str:
    """What the file is by its first bytes, if it is a known kind that is no model and no part of
    one; "" if not, or if it cannot be read."""
    try:
        with file.open("rb") as opened:
            begin = opened.read(_LOOKED_AT)
    except OSError:
        return ""
    text = begin.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith(b"version https://git-lfs"):
        return (
            "a pointer of Git LFS, which stands for a file that was not downloaded: run "
            "'git lfs pull', or download the file itself"
        )
    if text.startswith((b"<!doctype html", b"<html", b"<?xml")):
        return (
            "a web page: the download brought a page and not the file, as where a login or "
            "another address is needed"
        )
    if begin.startswith(b"PK\x03\x04"):
        return "a zip archive, as PyTorch writes them: name a model in safetensors or GGUF"
    if begin.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")):
        return "a compressed archive: unpack it, and name the model in it"
    if begin[8:12] in (b"blk.", b"outp", b"toke"):
        return GGUF_TYPES["imatrix"]
    return ""


def is_safetensors(file: Path) -> bool:
    """Whether the file begins as one with tensors does."""
    try:
        with file.open("rb") as opened:
            return opened.read(10)[8:] == b'{"'
    except OSError:
        return False


def check_has_model(directory: Path) -> None:
    """Refuse a directory without a ``config.json`` by what it is, if that is known. Raises
    `ModelFilesError`."""
    if (directory / "config.json").exists():
        return
    if (directory / "adapter_config.json").exists():
        raise ModelFilesError(
            f"{directory} holds an adapter (LoRA), which is no model by itself: merge it into its "
            "model (merge_and_unload of the package peft), and name the directory that this writes"
        )
    holds = (directory / "tokenizer.json").exists() and not any(directory.glob("*.safetensors"))
    if holds:
        raise ModelFilesError(
            f"{directory} holds a vocabulary alone: config.json and weights are missing; name a "
            "directory with a whole model"
        )

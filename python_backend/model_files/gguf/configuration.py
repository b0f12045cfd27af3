"""A GGUF file's metadata under the names of Hugging Face's ``config.json``."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path
from typing import Any

from model_files.gguf.header import Header
from model_files.interface import ModelFilesError

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
"""Values of ``general.architecture`` that are known; each is Hugging Face's `model_type` too."""
FREQUENCY_DIVISORS = "rope_freqs.weight"
"""A tensor by which Llama 3's rotary frequencies are divided; llama.cpp writes it in place of the
parameters of that scaling."""


def configuration(header: Header) -> dict[str, Any]:
    """The model's shape and the ids of its special tokens. Raises `ModelFilesError`."""
    family = header.required("general.architecture", str)
    if family not in ARCHITECTURES:
        raise ModelFilesError(
            f"{header.file}: general.architecture {family!r} is not supported; "
            f"allowed: {', '.join(ARCHITECTURES)}"
        )
    if not header.tensors:
        raise ModelFilesError(
            f"{header.file} holds a vocabulary alone, and no weights; name the model's own file"
        )
    parts = header.value("split.count", int) or 1
    if parts > 1:
        raise ModelFilesError(
            f"{header.file}: split.count is {parts}, and files in parts are not supported; join "
            "them with llama.cpp's llama-gguf-split --merge"
        )
    count = partial(_count, header, family)
    heads = count("attention.head_count")
    head_size = _head_size(header, family, heads)
    config = {
        "model_type": family,
        "vocab_size": _vocabulary(header),
        "hidden_size": count("embedding_length"),
        "intermediate_size": count("feed_forward_length"),
        "num_hidden_layers": count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": count("attention.head_count_kv", heads),
        "head_dim": head_size,
        "max_position_embeddings": count("context_length"),
        "rms_norm_eps": header.required(f"{family}.attention.layer_norm_rms_epsilon", float),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "rope_parameters": _rope(header, family, head_size),
    }
    window = header.value(f"{family}.attention.sliding_window", int)
    if family in ("llama", "mistral") and window:
        config |= {"use_sliding_window": True, "sliding_window": window}
    ids = {name: header.value(f"tokenizer.ggml.{key}", int) for name, key in _IDS.items()}
    return config | {name: identity for name, identity in ids.items() if identity is not None}


_IDS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "padding_token_id",
}


def _count(header: Header, family: str, key: str, default: int | None = None) -> int:
    """A whole number of at least 1, which may be absent where there is a default."""
    key = f"{family}.{key}"
    found = header.required(key, int) if default is None else header.value(key, int)
    number = default if found is None else found
    if number is None or number < 1:
        raise ModelFilesError(f"{header.file}: {key} is {found}; allowed: at least 1")
    return number


def _vocabulary(header: Header) -> int:
    """As many ids as the embedding has rows: a tokenizer may know fewer."""
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFilesError(f"{header.file}: tensor 'token_embd.weight' is missing")
    return embedding.shape[0]


def _head_size(header: Header, family: str, heads: int) -> int:
    """Files say it in several places, and some of small models nowhere but in the tensors."""
    query = header.tensors.get("blk.0.attn_q.weight")
    said = header.value(f"{family}.attention.key_length", int)
    if said is None:
        said = query.shape[0] // heads if query is not None else 0
    for key in ("attention.value_length", "rope.dimension_count"):
        other = header.value(f"{family}.{key}", int)
        if other is not None and other != said:
            raise ModelFilesError(
                f"{header.file}: {family}.{key} is {other} where heads have {said} numbers; "
                "other sizes than that of a head are not supported"
            )
    return said


def _rope(header: Header, family: str, head_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rope_type": header.value(f"{family}.rope.scaling.type", str) or "default",
        "rope_theta": header.value(f"{family}.rope.freq_base", float) or 10000.0,
    }
    if found["rope_type"] == "none":
        found["rope_type"] = "default"
    # Older files say nothing but a factor.
    older = header.value(f"{family}.rope.scale_linear", float)
    factor = header.value(f"{family}.rope.scaling.factor", float) or older
    if older is not None and older != 1.0 and found["rope_type"] == "default":
        found["rope_type"] = "linear"
    if factor is not None:
        found["factor"] = factor
    if FREQUENCY_DIVISORS in header.tensors:
        found["frequency_divisors"] = _divisors(header, head_size // 2)
    return found


def _divisors(header: Header, count: int) -> list[float]:
    stored = header.tensors[FREQUENCY_DIVISORS]
    if stored.kind != "F32" or stored.shape != (count,):
        raise ModelFilesError(
            f"{header.file}: {FREQUENCY_DIVISORS} is {stored.kind} of shape {stored.shape}; "
            f"allowed: F32 of shape ({count},)"
        )
    return list(struct.unpack(f"<{count}f", _bytes_of(header.file, stored.offset, stored.size)))


def _bytes_of(file: Path, offset: int, size: int) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(offset)
            return opened.read(size)
    except OSError as error:
        raise ModelFilesError(f"{file} cannot be read: {error}") from error

"""A GGUF file's metadata under the names of Hugging Face's ``config.json``."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from model_files.gguf.header import Header
from model_files.interface import ModelFilesError

ARCHITECTURES: Mapping[str, str] = {
    name: name
    for name in (
        *("llama", "mistral", "qwen2", "qwen3"),
        *("phi3", "smollm3", "granite", "olmo2", "starcoder2"),
    )
} | {"gemma3": "gemma3_text"}
"""Hugging Face's `model_type` by the known values of ``general.architecture``."""
FREQUENCY_DIVISORS = "rope_freqs.weight"
"""A tensor by which Llama 3's rotary frequencies are divided; llama.cpp writes it in place of the
parameters of that scaling."""
_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"
"""Tensors with LongRoPE's divisors."""
DIVISORS = (FREQUENCY_DIVISORS, _SHORT, _LONG)
_FACTORS = {
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "attention_multiplier": "attention.scale",
    "final_logit_softcapping": "final_logit_softcapping",
}
"""Keys of factors by their fields in ``config.json``."""
_SLIDING_ALIKE = ("llama", "mistral", "phi3", "starcoder2")
"""Architectures with one window for all layers, if they have one."""


def configuration(header: Header) -> dict[str, Any]:
    """The model's shape and the ids of its special tokens. Raises `ModelFilesError`."""
    family = header.required("general.architecture", str)
    if family not in ARCHITECTURES:
        raise ModelFilesError(
            f"{header.file}: general.architecture {family!r} is not supported; "
            f"allowed: {', '.join(ARCHITECTURES)}; for a target that vLLM runs, name its "
            "directory of safetensors and set target.engine: vllm"
        )
    if not header.tensors:
        raise ModelFilesError(
            f"{header.file} holds a vocabulary alone, and no weights; name the model's own file"
        )
    count = partial(_count, header, family)
    heads = count("attention.head_count")
    head_size = _head_size(header, family, heads)
    config = {
        "model_type": ARCHITECTURES[family],
        "vocab_size": _vocabulary(header),
        "hidden_size": count("embedding_length"),
        "intermediate_size": count("feed_forward_length"),
        "num_hidden_layers": count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": count("attention.head_count_kv", heads),
        "head_dim": head_size,
        "max_position_embeddings": count("context_length"),
        **_epsilon(header, family),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "rope_parameters": _rope(header, family, head_size),
    }
    for field, key in _FACTORS.items():
        if (factor := header.value(f"{family}.{key}", float)) is not None:
            config[field] = factor
    window = header.value(f"{family}.attention.sliding_window", int)
    if window and family in _SLIDING_ALIKE:
        config |= {"use_sliding_window": True, "sliding_window": window}
    if family == "gemma3":
        config |= _gemma(header, config, window)
    ids = {name: header.value(f"tokenizer.ggml.{key}", int) for name, key in _IDS.items()}
    return config | {name: identity for name, identity in ids.items() if identity is not None}


_IDS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "padding_token_id",
}


def _epsilon(header: Header, family: str) -> dict[str, float]:
    """The epsilon of norms; StarCoder2's are LayerNorms."""
    if family == "starcoder2":
        return {"norm_epsilon": header.required(f"{family}.attention.layer_norm_epsilon", float)}
    return {"rms_norm_eps": header.required(f"{family}.attention.layer_norm_rms_epsilon", float)}


_GEMMA_27B_LAYERS = 62


def _gemma(header: Header, config: dict[str, Any], window: int | None) -> dict[str, Any]:
    """What llama.cpp knows of Gemma 3 and files need not say: layers that slide have a base of
    their own and no scaling, and the largest model scales its scores by the size of its shares."""
    local = header.value("gemma3.rope.freq_base_swa", float) or 10000.0
    scalar = config["head_dim"]
    if config["num_hidden_layers"] == _GEMMA_27B_LAYERS:
        scalar = config["hidden_size"] // config["num_attention_heads"]
    rope = config["rope_parameters"]
    if header.value("gemma3.rope.freq_base", float) is None:
        rope["rope_theta"] = 1e6
    return {
        "sliding_window": window,
        "query_pre_attn_scalar": scalar,
        "rope_parameters": {
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
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
    if said is None and query is None:  # one matrix for query, key and value
        said = header.required(f"{family}.embedding_length", int) // heads
    elif said is None and query is not None:
        said = query.shape[0] // heads
    assert said is not None
    values = header.value(f"{family}.attention.value_length", int)
    rotated = header.value(f"{family}.rope.dimension_count", int)
    for key, other, fits in (
        ("attention.value_length", values, values == said),
        ("rope.dimension_count", rotated, rotated == said or family == "phi3"),
    ):
        if other is not None and not fits:
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
    original = header.value(f"{family}.rope.scaling.original_context_length", int)
    if original is not None:
        found["original_max_position_embeddings"] = original
    rotated = header.value(f"{family}.rope.dimension_count", int) or head_size
    if rotated != head_size:
        found["partial_rotary_factor"] = rotated / head_size
    if FREQUENCY_DIVISORS in header.tensors:
        found["frequency_divisors"] = _divisors(header, FREQUENCY_DIVISORS, rotated // 2)
    if _SHORT in header.tensors and _LONG in header.tensors:
        found["rope_type"] = "longrope"
        found["short_factor"] = _divisors(header, _SHORT, rotated // 2)
        found["long_factor"] = _divisors(header, _LONG, rotated // 2)
        scale = header.value(f"{family}.rope.scaling.attn_factor", float)
        if scale is not None:
            found["attention_factor"] = scale
    return found


def _divisors(header: Header, name: str, count: int) -> list[float]:
    stored = header.tensors[name]
    if stored.kind != "F32" or stored.shape != (count,):
        raise ModelFilesError(
            f"{stored.file}: {name} is {stored.kind} of shape {stored.shape}; "
            f"allowed: F32 of shape ({count},)"
        )
    return list(struct.unpack(f"<{count}f", _bytes_of(stored.file, stored.offset, stored.size)))


def _bytes_of(file: Path, offset: int, size: int) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(offset)
            return opened.read(size)
    except OSError as error:
        raise ModelFilesError(f"{file} cannot be read: {error}") from error

"""Small random models as GGUF files, and as `transformers` computes them.

The files are written as llama.cpp's converter does: rows of query and key in the order of its
rotary embedding, norms in float32, every matrix in the type that a test wants.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tiny_models
import torch
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, quants
from gguf.constants import GGML_QUANT_SIZES
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import (
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
    Starcoder2Config,
)

KINDS = (
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"),
)

_SHAPE = {
    "vocab_size": 96,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
_PLAIN = {name: value for name, value in _SHAPE.items() if name != "head_dim"}
_WINDOW = 20
FAMILIES: dict[str, Any] = {
    "llama": LlamaConfig(**_SHAPE),
    "llama_tied": LlamaConfig(**_SHAPE | {"tie_word_embeddings": True}),
    "llama_with_biases": LlamaConfig(**_SHAPE, attention_bias=True),
    "mistral": MistralConfig(**_SHAPE, sliding_window=None),
    "qwen2": Qwen2Config(**_SHAPE, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "qwen3": Qwen3Config(**_SHAPE | {"head_dim": 128}),
    "gemma3": Gemma3TextConfig(
        **_SHAPE | {"num_hidden_layers": 6, "tie_word_embeddings": True, "sliding_window": _WINDOW},
        query_pre_attn_scalar=64,
    ),
    "phi3": Phi3Config(
        **_PLAIN,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75},
        sliding_window=_WINDOW,
        **tiny_models.NO_SPECIAL,
    ),
    "phi3_longrope": Phi3Config(
        **_PLAIN | {"max_position_embeddings": 1024},
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1 + place / 16 for place in range(32)],
            "long_factor": [1.0 + place for place in range(32)],
        },
        original_max_position_embeddings=256,
        **tiny_models.NO_SPECIAL,
    ),
    "smollm3": SmolLM3Config(**_PLAIN | {"num_hidden_layers": 4}, **tiny_models.NO_SPECIAL),
    "granite": GraniteConfig(
        **_PLAIN,
        embedding_multiplier=1.7,
        attention_multiplier=0.2,
        residual_multiplier=0.6,
        logits_scaling=0.5,
    ),
    "olmo2": Olmo2Config(**_PLAIN, **tiny_models.NO_SPECIAL),
    "starcoder2": Starcoder2Config(
        **_PLAIN | {"tie_word_embeddings": True}, sliding_window=_WINDOW, **tiny_models.NO_SPECIAL
    ),
}

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OTHER_NAMES = {
    "gemma3": {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
    "olmo2": {
        "post_attention_layernorm": "post_attention_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
    "phi3": {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    "starcoder2": {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
}
"""Names of tensors in families where they are not Llama's."""
_SCALE_BYTES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
"""Where a block's float16 scales lie: of its weights, then of its minimums."""
_CENTRE = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}


def write(
    file: Path,
    name: str,
    kind: str | Mapping[str, str],
    *,
    metadata: Callable[[GGUFWriter], None] = lambda writer: None,
    seed: int = 0,
    config: Any = None,
    tensors_of_part: int = 0,
) -> PreTrainedModel:
    """Write a random model of the family `name`; returns what it must compute.

    With `tensors_of_part` it is written in parts, whose names begin as that of `file`.

    `kind` is the type of every matrix, or types by the name of a tensor without its layer, with the
    one for all others under "".
    """
    model = tiny_models.build(FAMILIES[name] if config is None else config, seed)
    family = name.split("_")[0]
    writer = GGUFWriter(file, family, split_max_tensors=tensors_of_part)
    _write_shape(writer, family, model.config)
    metadata(writer)
    kinds = {"": kind} if isinstance(kind, str) else kind
    random = np.random.default_rng(seed)
    for parameter_name, parameter in model.named_parameters():
        tensor, leaf = _gguf_name(family, parameter_name)
        values = parameter.detach().numpy()
        heads = _rotated_heads(family, leaf, model.config)
        if values.ndim == 1:
            values = values + 1 if family == "gemma3" else values
            writer.add_tensor(tensor, _pairs(values, heads))
            continue
        chosen = GGMLQuantizationType[kinds.get(leaf, kinds[""])]
        packed = _packed(_pairs(values, heads), chosen, random)
        writer.add_tensor(tensor, packed, raw_dtype=chosen)
        unpacked = _halves(quants.dequantize(packed, chosen), heads)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(np.array(unpacked)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _write_shape(writer: GGUFWriter, family: str, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if family == "starcoder2":
        writer.add_layer_norm_eps(config.norm_epsilon)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if family in ("qwen3", "gemma3"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if family in ("llama", "mistral"):
        writer.add_rope_dimension_count(config.head_dim)
    if family in ("gemma3", "phi3", "starcoder2"):
        writer.add_sliding_window(config.sliding_window or 0)
    if family == "phi3":
        _write_phi(writer, config)
    if family == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def _write_phi(writer: GGUFWriter, config: Any) -> None:
    rope, original = config.rope_parameters, config.original_max_position_embeddings
    size = config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(int(size * rope["partial_rotary_factor"]))
    writer.add_rope_scaling_orig_ctx_len(original)
    if rope["rope_type"] == "longrope":
        stretch = config.max_position_embeddings / original
        scale = math.sqrt(1 + math.log(stretch) / math.log(original))
        writer.add_rope_scaling_attn_factors(scale)
        for name in ("long", "short"):
            factors = np.array(rope[f"{name}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{name}.weight", factors)


def _gguf_name(family: str, parameter: str) -> tuple[str, str]:
    """The tensor's name in the file, and without its layer."""
    path, suffix = parameter.rsplit(".", 1)
    names = _NAMES | _OTHER_NAMES.get(family, {})
    if not path.startswith("model.layers."):
        return f"{names[path]}.{suffix}", f"{names[path]}.{suffix}"
    _, _, layer, inner = path.split(".", 3)
    return f"blk.{layer}.{names[inner]}.{suffix}", f"{names[inner]}.{suffix}"


def _rotated_heads(family: str, leaf: str, config: Any) -> int:
    """How many heads lie in the order of llama.cpp's rotary embedding; 0: none."""
    if family not in ("llama", "mistral", "smollm3", "granite"):
        return 0
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    return int(heads.get(leaf.split(".")[0], 0))


def _pairs(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """A head's halves become pairs of neighbours."""
    if not heads:
        return values
    halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _halves(values: NDArray[Any], heads: int) -> NDArray[Any]:
    if not heads:
        return values
    pairs = values.reshape(heads, len(values) // heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _packed(
    values: NDArray[np.float32], kind: GGMLQuantizationType, random: np.random.Generator
) -> NDArray[Any]:
    if kind.name not in _SCALE_BYTES:
        return quants.quantize(values, kind)
    # The package cannot quantise these: random blocks, as large as the values are.
    shape = quants.quant_shape_to_byte_shape(values.shape, kind)
    block, size = GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (*shape[:-1], values.shape[-1] // block, size), np.uint8)

    def scaled(scale: float) -> NDArray[Any]:
        for at, factor in zip(_SCALE_BYTES[kind.name], (1.0, _CENTRE.get(kind.name)), strict=False):
            half = np.array([scale * (factor or 1.0)], np.float16).view(np.uint8)
            blocks[..., at : at + 2] = half
        return blocks.reshape(shape)

    deviation = quants.dequantize(scaled(2.0**-6), kind).std() * 2.0**6
    return scaled(float(values.std() / deviation))


def with_tokens(
    tokens: Sequence[str],
    kinds: Sequence[int],
    *,
    model: str = "gpt2",
    pre: str | None = "default",
    merges: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    **more: str | int | bool,
) -> Callable[[GGUFWriter], None]:
    """Metadata of a tokenizer; `more` are others of its keys: ids, switches, a chat template."""

    def metadata(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model(model)
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list(list(tokens))
        writer.add_token_types(list(kinds))
        if merges is not None:
            writer.add_token_merges(list(merges))
        if scores is not None:
            writer.add_token_scores(list(scores))
        for key, value in more.items():
            if key == "chat_template":
                writer.add_chat_template(str(value))
            elif isinstance(value, bool):
                writer.add_bool(f"tokenizer.ggml.{key}", value)
            elif isinstance(value, int):
                writer.add_key_value(f"tokenizer.ggml.{key}", value, GGUFValueType.UINT32)

    return metadata


def bpe_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """Vocabulary and merges of a tokenizer."""
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model

"""Small random models as GGUF files, and as `transformers` computes them.

The files are written as llama.cpp's converter does: rows of query and key in the order of its
rotary embedding, norms in float32, every matrix in the type that a test wants.
"""

from __future__ import annotations

import json
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
from transformers import LlamaConfig, MistralConfig, PreTrainedModel, Qwen2Config, Qwen3Config

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
FAMILIES: dict[str, Any] = {
    "llama": LlamaConfig(**_SHAPE),
    "llama_tied": LlamaConfig(**_SHAPE | {"tie_word_embeddings": True}),
    "llama_with_biases": LlamaConfig(**_SHAPE, attention_bias=True),
    "mistral": MistralConfig(**_SHAPE, sliding_window=None),
    "qwen2": Qwen2Config(**_SHAPE, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "qwen3": Qwen3Config(**_SHAPE | {"head_dim": 128}),
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
) -> PreTrainedModel:
    """Write a random model of the family `name`; returns what it must compute.

    `kind` is the type of every matrix, or types by the name of a tensor without its layer, with the
    one for all others under "".
    """
    model = tiny_models.build(FAMILIES[name] if config is None else config, seed)
    family = name.split("_")[0]
    writer = GGUFWriter(file, family)
    _write_shape(writer, family, model.config)
    metadata(writer)
    kinds = {"": kind} if isinstance(kind, str) else kind
    random = np.random.default_rng(seed)
    for parameter_name, parameter in model.named_parameters():
        tensor, leaf = _gguf_name(parameter_name)
        values = parameter.detach().numpy()
        heads = _rotated_heads(family, leaf, model.config)
        if values.ndim == 1:
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
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if family == "qwen3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if family in ("llama", "mistral"):
        writer.add_rope_dimension_count(config.head_dim)


def _gguf_name(parameter: str) -> tuple[str, str]:
    """The tensor's name in the file, and without its layer."""
    path, suffix = parameter.rsplit(".", 1)
    if not path.startswith("model.layers."):
        return f"{_NAMES[path]}.{suffix}", f"{_NAMES[path]}.{suffix}"
    _, _, layer, inner = path.split(".", 3)
    return f"blk.{layer}.{_NAMES[inner]}.{suffix}", f"{_NAMES[inner]}.{suffix}"


def _rotated_heads(family: str, leaf: str, config: Any) -> int:
    """How many heads lie in the order of llama.cpp's rotary embedding; 0: none."""
    if family not in ("llama", "mistral"):
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

"""Write the draft, a Llama in a Hugging Face directory, as a GGUF file for llama.cpp.

The tokenizer is the target's, because the two share a vocabulary. Matrices get eight bits.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import quantize

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_LAYER = "model.layers."


def convert(checkpoint: Path, converted: Path, target: Path) -> None:
    converted.mkdir(parents=True, exist_ok=True)
    config = json.loads((checkpoint / "config.json").read_text())
    if config["model_type"] != "llama":
        raise SystemExit(f"the draft is a {config['model_type']}; only a llama is converted")
    writer = GGUFWriter(converted / "model.gguf", "llama")
    _add_shape(writer, config)
    _add_tokenizer(writer, GGUFReader(target))
    for name, values in _tensors(checkpoint / "model.safetensors"):
        renamed = _renamed(name)
        if renamed.endswith(("attn_q.weight", "attn_k.weight")):
            heads = "attention" if "attn_q" in renamed else "key_value"
            values = _in_rotary_order(values, config[f"num_{heads}_heads"])
        if values.ndim == 1:
            writer.add_tensor(renamed, values)
            continue
        kind = GGMLQuantizationType.Q8_0
        writer.add_tensor(renamed, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: GGUFWriter, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _add_tokenizer(writer: GGUFWriter, target: GGUFReader) -> None:
    for name, field in target.fields.items():
        if name.startswith("tokenizer."):
            kinds = field.types
            of_items = kinds[-1] if kinds[0] is GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kinds[0], of_items)


def _renamed(name: str) -> str:
    if not name.startswith(_LAYER):
        return NAMES[name]
    layer, part = name.removeprefix(_LAYER).split(".", 1)
    return f"blk.{layer}.{NAMES[part]}"


def _in_rotary_order(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head in llama.cpp's order: both halves of a rotated pair side by side."""
    rows, columns = matrix.shape
    halves = matrix.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def _tensors(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Names and float32 values of a bfloat16 or float32 checkpoint. NumPy has no bfloat16."""
    content = file.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    for name, entry in json.loads(content[8:begin]).items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        stored = content[begin + first : begin + last]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(stored, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            kinds = {"F32": np.float32, "F16": np.float16}
            values = np.frombuffer(stored, kinds[entry["dtype"]]).astype(np.float32)
        yield name, values.reshape(entry["shape"])


if __name__ == "__main__":
    convert(*map(Path, sys.argv[1:]))

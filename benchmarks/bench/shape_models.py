"""Random models of Llama 3's shapes as GGUF files, in the types that llama.cpp's recipes give.

The codes of a block are random bytes; its scales give weights of a usual size. Speed and memory do
not depend on the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
from numpy.typing import NDArray

from model_files.gguf.header import read_header

HEAD_KINDS = {"Q4_0": "Q6_K", "Q4_K_M": "Q6_K", "Q8_0": "Q8_0", "F16": "F16"}
"""The type of the embedding, which is the head too, by recipe."""

_SCALES = {"Q4_0": (0,), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
"""Where the float16 scales of a block lie."""
_CODE_DEVIATION = {"Q4_0": 4.6, "Q8_0": 74.0, "Q4_K": 250.0, "Q6_K": 1370.0}
"""Approximate standard deviation of a weight at scale 1."""
_TOKENIZER = ("model", "pre", "tokens", "token_type", "merges", "bos_token_id", "eos_token_id")


@dataclass(frozen=True)
class Shape:
    """The shape of a Llama decoder; heads have `head_size` numbers."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    tied: bool


SHAPES = {
    "1b": Shape(16, 2048, 8192, 32, 8, 64, tied=True),
    "3b": Shape(28, 3072, 8192, 24, 8, 128, tied=True),
    "8b": Shape(32, 4096, 14336, 32, 8, 128, tied=False),
}


def write_model(
    file: Path, shape: Shape, recipe: str, tokenizer_of: Path, vocabulary: int | None = None
) -> None:
    """Write a random model.

    recipe        a key of `HEAD_KINDS`
    tokenizer_of  a GGUF file with a BPE tokenizer, which the model gets
    vocabulary    number of ids; ids behind the tokenizer's are unused. None: as many as it has
    """
    writer = GGUFWriter(file, "llama", use_temp_file=True)
    known = read_header(tokenizer_of).metadata
    tokens = list(known["tokenizer.ggml.tokens"])
    more = max(0, (vocabulary or 0) - len(tokens))
    _write_shape(writer, shape)
    writer.add_file_type(LlamaFileType[f"MOSTLY_{recipe}"])  # OpenVINO GenAI reads no file without
    fields: dict[str, Any] = {name: known[f"tokenizer.ggml.{name}"] for name in _TOKENIZER}
    writer.add_tokenizer_model(fields["model"])
    writer.add_tokenizer_pre(fields["pre"])
    writer.add_token_list([*tokens, *(f"<unused{index}>" for index in range(more))])
    writer.add_token_types([*fields["token_type"], *[TokenType.UNUSED] * more])
    writer.add_token_merges(fields["merges"])
    writer.add_bos_token_id(fields["bos_token_id"])
    writer.add_eos_token_id(fields["eos_token_id"])
    random = np.random.default_rng(0)
    for name, kind, outputs, inputs in matrices(shape, recipe, len(tokens) + more):
        packed = _random(random, kind, outputs, inputs)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=GGMLQuantizationType[kind])
    norms = [f"blk.{n}.{part}" for n in range(shape.layers) for part in ("attn_norm", "ffn_norm")]
    for name in (*norms, "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(shape.hidden, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def matrices(shape: Shape, recipe: str, vocabulary: int) -> Iterator[tuple[str, str, int, int]]:
    """Name, type, outputs and inputs of every matrix."""
    hidden, head = shape.hidden, HEAD_KINDS[recipe]
    yield (
        "token_embd",
        ("Q4_K" if recipe == "Q4_K_M" and not shape.tied else head),
        vocabulary,
        hidden,
    )
    if not shape.tied:
        yield "output", head, vocabulary, hidden
    query, key_value = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    sizes = {
        "attn_q": (query, hidden),
        "attn_k": (key_value, hidden),
        "attn_v": (key_value, hidden),
        "attn_output": (hidden, query),
        "ffn_gate": (shape.intermediate, hidden),
        "ffn_up": (shape.intermediate, hidden),
        "ffn_down": (hidden, shape.intermediate),
    }
    for layer in range(shape.layers):
        for part, (outputs, inputs) in sizes.items():
            kind = recipe
            if recipe == "Q4_K_M":
                more = part in ("attn_v", "ffn_down") and _gets_more_bits(layer, shape.layers)
                kind = "Q6_K" if more else "Q4_K"
            yield f"blk.{layer}.{part}", kind, outputs, inputs


def _gets_more_bits(layer: int, layers: int) -> bool:
    """llama.cpp's rule for Q4_K_M: the first and last eighth, and a third of the other layers."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _random(random: np.random.Generator, kind: str, outputs: int, inputs: int) -> NDArray[Any]:
    """A matrix in this type: [outputs, inputs] float16, or [outputs, bytes of a row]."""
    deviation = inputs**-0.5
    if kind == "F16":
        weights = random.standard_normal((outputs, inputs), np.float32) * np.float32(deviation)
        return weights.astype(np.float16)
    size, size_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = random.integers(0, 256, (outputs, inputs // size, size_bytes), np.uint8)
    scale = np.float16(deviation / _CODE_DEVIATION[kind])
    for at in _SCALES[kind]:
        blocks[..., at : at + 2] = np.array([scale]).view(np.uint8)
    return blocks.reshape(outputs, -1)


def _write_shape(writer: GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(8192)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(shape.head_size)

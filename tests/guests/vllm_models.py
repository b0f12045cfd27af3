"""Tiny random models that only vLLM runs, with the tokenizer of the pair of `tests/pair`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from real_pair import PAIR
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    GraniteMoeHybridConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
)

VOCABULARY = 3072
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,  # vLLM's attention on processors has heads of 32 and more
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
}


def mixture() -> PretrainedConfig:
    """A mixture of experts."""
    return MixtralConfig(**_SHAPE, num_local_experts=4, num_experts_per_tok=2)


def fine_mixture() -> PretrainedConfig:
    """A mixture of many small experts, with query and key norms."""
    return Qwen3MoeConfig(
        **_SHAPE, head_dim=32, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32
    )


def sinks_and_windows() -> PretrainedConfig:
    """The shape of gpt-oss: experts, attention sinks, windows on every other layer."""
    return GptOssConfig(
        **_SHAPE | {"hidden_size": 64},
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=32,
    )


def state_space() -> PretrainedConfig:
    """A hybrid: Mamba 2 beside attention (Granite 4)."""
    return GraniteMoeHybridConfig(
        **_SHAPE | {"num_hidden_layers": 4},
        layer_types=["mamba", "attention", "mamba", "attention"],
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=64,
        mamba_n_heads=8,
        mamba_d_head=32,
        mamba_d_state=16,
        mamba_n_groups=1,
    )


Shape = Callable[[], PretrainedConfig]
SHAPES: tuple[Shape, ...] = (mixture, fine_mixture, sinks_and_windows)


def save(shape: Shape, directory: Path) -> Path:
    """A model of this shape with random weights; its directory."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(shape()).to(torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "embed" not in name:
                weight.mul_(4.0)  # so that texts differ, and do not repeat one token
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(PAIR / "target" / name, directory / name)
    return directory

"""Builds the decoder of a recipe and writes it as a Hugging Face directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from training.recipe import Architecture
from training.tokenization import END_OF_TEXT

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def build(
    architecture: Architecture, vocabulary: int, positions: int, seed: int
) -> PreTrainedModel:
    """A fresh decoder in float32, its weights drawn from ``seed`` alone."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=architecture.hidden,
        intermediate_size=architecture.intermediate,
        num_hidden_layers=architecture.layers,
        num_attention_heads=architecture.heads,
        num_key_value_heads=architecture.kv_heads,
        max_position_embeddings=positions,
        rope_parameters={"rope_type": "default", "rope_theta": architecture.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=END_OF_TEXT,
        eos_token_id=END_OF_TEXT,
    )
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def load(folder: Path, device: torch.device) -> PreTrainedModel:
    """Read a Hugging Face directory in float32, ready to be evaluated.

    Raises:
        FileNotFoundError: the folder holds no model.
    """
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no model: `all` trains one")
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    on_device(model, device).train(False)
    return model


def save(model: PreTrainedModel, tokenizer: Path, folder: Path) -> None:
    """Write config, bfloat16 weights, generation defaults and tokenizer into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    halved = type(model)(model.config)
    halved.load_state_dict(model.state_dict())
    halved.bfloat16().save_pretrained(folder)
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, folder / name)


def on_device(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """Move a model in place; returns it."""
    nn.Module.to(model, device)
    return model


def parameters(model: PreTrainedModel) -> int:
    """Number of weights, tied ones counted once."""
    return sum(weight.numel() for weight in model.parameters())

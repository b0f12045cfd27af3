"""Writes Hugging Face directories: config.json, sharded safetensors, a tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from aligned.shapes import PairShape


def write_target(
    model: LlamaForCausalLM, tokenizer: Path, folder: Path, *, shard: str = "2GB"
) -> None:
    """Write the model; each shard is copied from its device on its own."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size=shard)
    write_tokenizer(tokenizer, folder, model.config.vocab_size)


def write_draft(target: LlamaForCausalLM, shape: PairShape, tokenizer: Path, folder: Path) -> None:
    """Write the target's first layers with its embedding, norm and head, without copies."""
    with torch.device("meta"):
        draft = LlamaForCausalLM(LlamaConfig(**shape.config(shape.draft_layers)))
    weights = target.state_dict()
    wanted = {name: weights[name] for name in draft.state_dict()}
    draft.load_state_dict(wanted, assign=True)
    draft.config.dtype = target.dtype
    write_target(draft, tokenizer, folder)


def write_tokenizer(tokenizer: Path, folder: Path, vocabulary: int) -> None:
    """The tokenizer of `tokenizer` with as many ids as the model has.

    Ids it lacks get a spelling like ``<9000>``. They have no merges: no text is ever encoded to
    them, but what the model writes can be read.
    """
    content = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    ids: dict[str, int] = content["model"]["vocab"]
    taken = {*ids.values(), *(added["id"] for added in content.get("added_tokens", []))}
    ids.update({f"<{index}>": index for index in range(vocabulary) if index not in taken})
    folder.joinpath("tokenizer.json").write_text(
        json.dumps(content, ensure_ascii=False), encoding="utf-8"
    )
    shutil.copyfile(tokenizer / "tokenizer_config.json", folder / "tokenizer_config.json")

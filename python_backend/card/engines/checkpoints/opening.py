"""Chooses the reader of a model's files."""

from __future__ import annotations

from pathlib import Path

from card.engines.architecture import Architecture
from card.engines.checkpoints.safetensors import SafetensorsCheckpoint
from card.engines.checkpoints.tensors import Checkpoint
from model_files.opening import is_gguf, model_at


def open_checkpoint(path: Path, architecture: Architecture) -> Checkpoint:
    """Find every tensor of a Hugging Face directory or a GGUF file; none is read yet. Raises
    `EngineError`."""
    path = model_at(path)
    if not is_gguf(path):
        return SafetensorsCheckpoint(path, architecture)
    from card.engines.checkpoints.gguf import GgufCheckpoint  # its package takes 0.3 s

    return GgufCheckpoint(path, architecture)

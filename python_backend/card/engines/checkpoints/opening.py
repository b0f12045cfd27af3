"""Which reader takes a model's files."""

from __future__ import annotations

from pathlib import Path

from card.engines.architecture import Architecture
from card.engines.checkpoints.safetensors import SafetensorsCheckpoint
from card.engines.checkpoints.tensors import Checkpoint


def open_checkpoint(path: Path, architecture: Architecture) -> Checkpoint:
    """Find every tensor of a Hugging Face directory; none is read yet. Raises `EngineError`."""
    return SafetensorsCheckpoint(path, architecture)

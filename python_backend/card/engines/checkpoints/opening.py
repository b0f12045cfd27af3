"""Chooses the reader of a model's files, and reads layers ahead of their use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

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


Item = TypeVar("Item")


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The items, each made in a thread while the one before is used. An error is raised where its
    item would be."""
    iterator = iter(items)
    with ThreadPoolExecutor(1) as executor:
        coming = executor.submit(next, iterator, None)
        while (item := coming.result()) is not None:
            coming = executor.submit(next, iterator, None)
            yield item

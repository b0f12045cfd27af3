"""What runs a model. `load_engine` is the door; everything behind it is imported when needed."""

from __future__ import annotations

from typing import Literal

from card.engines.interface import FOLLOWS_PREFIX, Engine, EngineError, Logits, Rows
from card.settings import Settings

__all__ = ["FOLLOWS_PREFIX", "Engine", "EngineError", "Logits", "Rows", "load_engine"]


def load_engine(settings: Settings, role: Literal["draft", "target"]) -> Engine:
    """Load the `role`'s model as the settings say. Raises `EngineError`."""
    from card.engines.torch.loading import load_torch_engine

    return load_torch_engine(settings, role)

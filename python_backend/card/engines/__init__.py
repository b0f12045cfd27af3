"""What runs a model. `load_engine` is the door; everything behind it is imported when needed."""

from __future__ import annotations

from typing import Literal

from card.engines.interface import FOLLOWS_PREFIX, Engine, EngineError, Logits, Ranking, Rows
from card.settings import Settings

__all__ = ["FOLLOWS_PREFIX", "Engine", "EngineError", "Logits", "Ranking", "Rows", "load_engine"]


def load_engine(
    settings: Settings, role: Literal["draft", "target"], *, quickly: bool = False
) -> Engine:
    """Load the `role`'s model as the settings say. Raises `EngineError`.

    quickly  whether it may compute more slowly at first, while a thread goes on to compile
    """
    from card.engines.loading import load_checkpoint_engine

    return load_checkpoint_engine(settings, role, quickly=quickly)

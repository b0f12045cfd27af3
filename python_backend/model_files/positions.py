"""How many positions a model was built for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def sliding_window(config: Mapping[str, Any]) -> Any:
    """The window of a model whose attention slides, as its configuration has it; None: it does
    not slide."""
    slides = config.get("use_sliding_window", config.get("model_type") == "mistral")
    return config.get("sliding_window") if slides else None


def most_positions(config: Mapping[str, Any]) -> int | None:
    """The most that one session may have: within its window sliding attention is full attention,
    and beyond it no engine goes. None: the configuration names no such number."""
    named = (config.get("max_position_embeddings"), sliding_window(config))
    numbers = [number for number in named if type(number) is int and number > 0]
    return min(numbers, default=None)

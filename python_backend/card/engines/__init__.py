"""Engines, which run models for loops and drafters; `card.loading` makes one."""

from card.engines.interface import (
    FOLLOWS_PREFIX,
    Engine,
    EngineError,
    Logits,
    Ranking,
    SequenceTokens,
    Text,
)

"""What runs a model, as loops and drafters see it; `card.loading` makes one."""

from card.engines.interface import (
    FOLLOWS_PREFIX,
    Engine,
    EngineError,
    Logits,
    Ranking,
    SequenceTokens,
    Text,
)

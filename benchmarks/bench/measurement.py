"""What one completion tells, wherever it was decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.activity import NOTHING, DraftActivity
from bench.prompts import Prompt
from card.cache import NO_SALT


@dataclass(frozen=True)
class Task:
    """One text to write. The seed belongs to the prompt, so every system writes the same text.

    salt  texts with the same one tell each other n-grams, in systems that let them
    """

    prompt: Prompt
    temperature: float
    seed: int
    max_tokens: int
    salt: bytes = NO_SALT


@dataclass(frozen=True, slots=True)
class Phases:
    """Milliseconds of the target's passes after the first token, all `steps` of them together."""

    steps: int
    query: float
    forward: float
    verify: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """One completion.

    tokens          [generated] ids, or None where only the text is seen
    seconds         from the request to the last token
    first_token_s   from the request to the first token (or first text)
    steps           target passes that committed
    queries, hits   of the candidate cache
    target_wait_s   the target had nothing it might do; None where it cannot be seen
    draft           what the draft did meanwhile
    foreign         tokens that the target would not have chosen
    layers          of candidates that the draft made, and lost_layers that commits threw away
    saved_rows      of draft passes, because nodes shared what is below them
    phases          where the target's time went; None where it cannot be seen
    """

    text: str
    tokens: tuple[int, ...] | None
    generated: int
    seconds: float
    first_token_s: float
    steps: int
    drafted: int = 0
    accepted: int = 0
    queries: int = 0
    hits: int = 0
    draft: DraftActivity = NOTHING
    foreign: int = 0
    layers: int = 0
    lost_layers: int = 0
    saved_rows: int = 0
    target_wait_s: float | None = None
    phases: Phases | None = None

    @property
    def tokens_per_s(self) -> float:
        return self.generated / self.seconds

    def writes_the_same_as(self, other: Measurement) -> bool:
        """Token by token where both know them, else text by text."""
        if self.tokens is not None and other.tokens is not None:
            return self.tokens == other.tokens and self.text == other.text
        return self.text == other.text


def geometric_mean(values: Sequence[float]) -> float:
    """The mean whose quotients are means of quotients."""
    return float(np.exp(np.mean(np.log(values))))

"""The measurements of one completion, wherever it was decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.prompts import Prompt
from card.cache import NO_SALT, Pool, SlotCounters

_OF_SLOT = ("steps", "accepted", "queries", "hits", "foreign", "layers", "lost_layers")
_OF_DRAFT = ("draft_waiting_ns", "draft_busy_ns", "draft_passes")


@dataclass(frozen=True)
class Task:
    """One text to write. The seed belongs to the prompt, so every system writes the same text.

    salt   texts with the same salt share n-grams, in systems that allow it
    trace  the target reports its steps in the slot
    """

    prompt: Prompt
    temperature: float
    seed: int
    max_tokens: int
    salt: bytes = NO_SALT
    trace: bool = False


@dataclass(frozen=True)
class Measurement:
    """One completion; of `streams`, one run of many texts.

    tokens         [generated] ids, or None where only the text is seen
    seconds        from the request to the last token
    first_token_s  from the request to the first token (or first text)
    counts         of the session, by the names of `SlotCounters`; of the draft, by the words of the
                   pool's header; of the target after the first token: `later_steps`, `query_ns`,
                   `forward_ns` and `verify_ns`. A name that is missing could not be seen
    latency        of many streams: figures of a row, by name
    """

    text: str
    tokens: tuple[int, ...] | None
    generated: int
    seconds: float
    first_token_s: float
    counts: Mapping[str, int] = field(default_factory=Counter)
    latency: Mapping[str, float] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float:
        return self.generated / self.seconds

    @property
    def accepted(self) -> int:
        """Candidates."""
        return self.counts["accepted"]

    def writes_the_same_as(self, other: Measurement) -> bool:
        """Token by token where both know them, else text by text."""
        if self.tokens is not None and other.tokens is not None:
            return self.tokens == other.tokens
        return self.text == other.text


def slot_counts(counters: SlotCounters) -> Counter[str]:
    return Counter({name: getattr(counters, name) for name in _OF_SLOT})


def draft_counts(pool: Pool, before: Mapping[str, int] | None = None) -> Counter[str]:
    """What the draft has counted since it began, or since `before`; nothing, if another draft
    began to count meanwhile."""
    now = Counter({name: int(pool.header[name]) for name in _OF_DRAFT})
    if before is None:
        return now
    since = Counter({name: now[name] - before[name] for name in _OF_DRAFT})
    return since if min(since.values()) >= 0 else Counter()


def geometric_mean(values: Sequence[float]) -> float:
    """The quotient of two such means is the mean of the quotients."""
    return float(np.exp(np.mean(np.log(values))))

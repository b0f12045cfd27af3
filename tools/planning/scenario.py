"""What a simulation is given, the settings and what passes cost, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from card.speculation import drafters
from card.speculation.drafters.growth import GrowthConfig
from card.speculation.drafters.tree import TreeDrafter
from planning.clock import Work

Pacing = str
"""A key of `PACINGS`."""
DRAFTERS = {
    name: drafter for name, drafter in drafters.DRAFTERS.items() if issubclass(drafter, TreeDrafter)
}
"""Those that can be simulated, by their registry keys."""


class StepCost(Protocol):
    """What a pass of one model costs by its rows and the context they attend to."""

    def work(self, rows: int, context: int) -> Work: ...


@dataclass(frozen=True)
class Speculation:
    """The settings of section `speculation` that decide about speed; `ngram_tokens` is its
    `ngram_tokens`, and `growth_config` what growth rules go by.

    drafter  key of `DRAFTERS`; another one: n-grams alone propose
    parcel   tokens that a smaller draft writes for one pass, where the drafter has one
    is_remote  a device drafts: the target has all cores
    """

    width: int = 4
    depth: int = 32
    rows: int = 8
    ngram_tokens: int = 0
    num_draft_tokens: int = 4
    growth: str = "best_first"
    nodes: int = 512
    growth_config: GrowthConfig = field(default_factory=GrowthConfig)
    drafter: str = "tree"
    parcel: int = 4
    is_remote: bool = False


@dataclass(frozen=True)
class Delays:
    """Milliseconds.

    bus      until a commit or a published node is seen by the other side
    wake     until a stopped loop notices that it has something to do
    stream   until a committed token is with the client
    """

    bus: float = 0.0
    wake: float = 0.0
    stream: float = 0.0


@dataclass(frozen=True)
class Machinery:
    """Two models somewhere: what their passes cost and how they hear of each other.

    target_alone  the target's passes while the draft is stopped; None: as beside it
    """

    target: StepCost
    draft: StepCost
    delays: Delays = Delays()
    prefill_ms: float = 0.0
    target_alone: StepCost | None = None


@dataclass
class Run:
    """What one simulated text counts, as the benchmark counts it; milliseconds."""

    tokens: int = 0
    ms: float = 0.0
    steps: int = 0
    target_busy_ms: float = 0.0
    accepted: int = 0
    queries: int = 0
    hits: int = 0
    draft_passes: int = 0
    draft_rows: int = 0
    draft_busy_ms: float = 0.0
    rows_of_steps: list[int] = field(default_factory=list)
    rows_alone: list[int] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        return 1e3 * self.tokens / self.ms

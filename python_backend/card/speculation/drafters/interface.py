"""What a drafter is: four methods, each about sessions that the draft's loop follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from card.cache import SlotRequest
from card.constraints.draft_constraint import DraftConstraint
from card.speculation.drafters.growth import GrowthConfig
from card.speculation.tree import GrowingTree, Nodes, ReRoot

Model = Literal["engine", "engines", "tensorrt_llm", "none"]
"""What makes a drafter's passes: an `Engine`, that of the draft and that of `draft_small`,
TensorRT-LLM's `Runtime`, or no model at all."""


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """The settings that drafters go by.

    width               nodes that one pass expands, at most
    depth               tokens that a tree may run ahead of the text
    growth              key of `GROWTHS`: the rule of requests that name none
    growth_config       what growth rules go by
    ngram_tokens        n-gram proposals behind a node, at most
    parcel              tokens that a smaller draft writes for one pass
    adapts              fewer nodes are expanded where their rows cost more than they promise
    prefill_chunk       tokens of a text that one pass reads, at most
    side_branches       requests beside the draft's own continuation (TensorRT-LLM)
    side_branch_tokens  tokens of each of them
    stall_timeout_s     a model that has requests and gives no token for longer is broken
    """

    width: int = 4
    depth: int = 32
    growth: str = "best_first"
    growth_config: GrowthConfig = field(default_factory=GrowthConfig)
    ngram_tokens: int = 6
    parcel: int = 4
    adapts: bool = True
    prefill_chunk: int = 64
    side_branches: int = 0
    side_branch_tokens: int = 1
    stall_timeout_s: float = 60.0


@dataclass(slots=True, eq=False)
class DraftedSession:
    """One session as drafters see it. The loop writes it; drafters read it.

    number      of the session, from `open` to `close`
    request     what is decoded and how
    tokens      prompt and committed output
    tree        candidates below the last of `tokens`
    constraint  what keeps candidates to the guide of the text; None: it has none
    passes      that may be made before the loop looks at the session again
    """

    number: int
    request: SlotRequest
    tokens: list[int]
    tree: GrowingTree
    constraint: DraftConstraint | None = None
    passes: int = 1

    @property
    def tokens_left(self) -> int:
        """Tokens that the text may still get: candidates further ahead are of no use."""
        return len(self.request.prompt) + self.request.max_tokens - len(self.tokens)


class Drafter(Protocol):
    """Makes candidates. One thread calls it.

    model  what it needs to run on
    """

    model: ClassVar[Model]

    def __init__(self, model: Any, config: DraftConfig) -> None:
        """`model` is what the class's own `model` says, or None."""

    def open(self, session: DraftedSession) -> None:
        """Begin a session, whose tree is empty. Raises `EngineError` when there is no room."""

    def commit(self, session: DraftedSession, re_root: ReRoot) -> None:
        """The target committed tokens: `session` is as it is now, `re_root` says what is left of
        its tree."""

    def propose(self, sessions: Sequence[DraftedSession]) -> list[Nodes | None]:
        """One pass over these sessions, or as many as `DraftedSession.passes` allows: what is to be
        added to the tree of each. None: nothing more can be added before the next commit. Called in
        every step of the loop, also for no session."""

    def close(self, session: DraftedSession) -> None:
        """Forget a session."""

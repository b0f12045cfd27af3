"""The interface of drafters: four methods that the draft's loop calls with its sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from card.cache import SlotRequest, States
from card.constraints.constraint import DraftConstraint
from card.speculation.drafters.growth import GrowthConfig
from card.speculation.ngram import Followers
from card.speculation.tree import GrowingTree, Nodes, ReRoot

Model = Literal["engine", "engines", "head", "tensorrt_llm", "vllm", "none"]
"""The model of a drafter: the draft's `Engine`, the engines of the draft and `draft_small`, a head
on the target's hidden states, the `Chains` of TensorRT-LLM or vLLM, or no model."""


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """The settings of drafters.

    width               most nodes that one pass expands
    depth               tokens that a tree may run ahead of the text
    growth              key of `GROWTHS`: the rule of requests that name none
    growth_config       the settings of growth rules
    ngram_tokens        most n-gram proposals behind a node
    parcel              tokens that a smaller draft writes for one pass
    adapts              a pass expands fewer nodes where their rows cost more than their gain
    prefill_chunk       most tokens of a text that one pass reads
    side_branches       requests beside the draft's own continuation (TensorRT-LLM, vLLM)
    side_branch_tokens  tokens of each side branch
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
    mask_ids: tuple[int, ...] = ()
    block: int = 1
    ngrams: Followers | None = None


@dataclass(slots=True, eq=False)
class DraftedSession:
    """A drafter's view of one session. The loop writes it; drafters read it.

    number      number of the session, from `open` to `close`
    request     the session's request
    tokens      prompt and committed output
    tree        candidates below the last of `tokens`
    constraint  keeps candidates within the text's guide; None: there is no guide
    passes      passes that the drafter may make before the loop looks at the session again
    states      returns the first position and the target's hidden states of the text's tokens from
                a position on (`SlotView.states`); None: there are none
    """

    number: int
    request: SlotRequest
    tokens: list[int]
    tree: GrowingTree
    constraint: DraftConstraint | None = None
    passes: int = 1
    states: Callable[[int], tuple[int, States]] | None = None

    @property
    def tokens_left(self) -> int:
        """Tokens that the text may still get; candidates further ahead are useless."""
        return len(self.request.prompt) + self.request.max_tokens - len(self.tokens)


class Drafter(Protocol):
    """Makes candidates. One thread calls it.

    model  the model that it needs
    """

    model: ClassVar[Model]

    def __init__(self, model: Any, config: DraftConfig) -> None:
        """`model` is of the type that the class attribute `model` names, or None."""

    def open(self, session: DraftedSession) -> None:
        """Begin a session with an empty tree. Raises `EngineError` when there is no room."""

    def commit(self, session: DraftedSession, re_root: ReRoot) -> None:
        """Follow a commit of the target: `session` holds the new state, `re_root` the change of its
        tree."""

    def propose(self, sessions: Sequence[DraftedSession]) -> list[Nodes | None]:
        """Make one pass over these sessions, or as many as `DraftedSession.passes` allows.

        Returns the new nodes for the tree of each; None: the drafter adds nothing more before the
        next commit. The loop calls this in every step, even without a session.
        """

    def close(self, session: DraftedSession) -> None:
        """Forget a session."""

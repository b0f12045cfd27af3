"""What a rule of acceptance decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from card.cache import Candidates, Finish, SlotRequest
from card.constraints.constraint import Constraint
from card.sampling import History, Likeliest


@dataclass(frozen=True, slots=True)
class AcceptanceConfig:
    """The settings that rules of acceptance go by.

    loose_entropy  share of the largest entropy from which on the target is unsure (`loose`: θ)
    loose_window   candidates that must be right behind one that is not (`loose`: W)
    """

    loose_entropy: float = 0.3
    loose_window: int = 6


@dataclass(slots=True)
class VerifyResult:
    """What one target pass decided for one session.

    tokens             committed tokens in order: accepted candidates, then at most one of the
                       target's own
    accepted           whether each token was a candidate
    log_probabilities  of each token under the unprocessed logits; zeros unless asked for
    likeliest          ids at each token's position under the same; empty unless asked for
    rows               the rows of the pass that lie on the committed path, in order
    rejected           whether the last token took the place of candidates that were wrong
    foreign            accepted candidates that the target would not have chosen; a rule that is
                       lossless has none
    """

    tokens: list[int] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    likeliest: list[Likeliest] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    finish: Finish = Finish.RUNNING
    rejected: bool = False
    foreign: int = 0

    @property
    def num_accepted(self) -> int:
        return sum(self.accepted)


class TargetRows(Protocol):
    """Logits of one session's rows in a pass."""

    def row(self, index: int) -> NDArray[np.float32]:
        """[vocabulary] float32 logits of one row."""


class AcceptanceRule(Protocol):
    """Decides which candidates become text.

    lossless  the text is what the target alone would write
    """

    lossless: ClassVar[bool]

    def __init__(self, config: AcceptanceConfig) -> None: ...

    def verify(
        self,
        logits: TargetRows,
        candidates: Candidates,
        history: History,
        request: SlotRequest,
        constraint: Constraint | None = None,
    ) -> VerifyResult:
        """What is committed; `history` and the constraint's text grow by it.

        Row 0 of `logits` belongs to the last committed token, row 1 + i to candidate i. Candidates
        behind a place where the constraint does not know yet what it allows are left for another
        pass. Raises `InvalidLogitsError`, and `GuideError` if the constraint allows no token, or
        has used up what it may take.
        """

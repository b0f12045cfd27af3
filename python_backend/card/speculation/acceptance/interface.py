"""The interface of acceptance rules."""

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
    """The settings of acceptance rules.

    loose_entropy  share of the largest entropy at which the target counts as unsure (`loose`: θ)
    loose_window   right candidates that must follow a wrong one (`loose`: W)
    """

    loose_entropy: float = 0.3
    loose_window: int = 6


@dataclass(slots=True)
class VerifyResult:
    """The result of one target pass for one session.

    tokens             committed tokens in order: accepted candidates, then at most one token of
                       the target's own
    accepted           whether each token was a candidate
    log_probabilities  of each token under the unprocessed logits; zeros unless requested
    likeliest          likeliest ids at each token's position under the unprocessed logits; empty
                       unless requested
    rows               the rows of the pass that lie on the committed path, in order
    rejected           whether the last token replaced wrong candidates
    foreign            accepted candidates that the target would not have chosen; 0 for a lossless
                       rule
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

    lossless  the text equals the text of plain decoding
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
        """Verify candidates; `history` and the constraint's text grow by the committed tokens.

        Row 0 of `logits` belongs to the last committed token, row 1 + i to candidate i. Where the
        constraint's mask is not ready yet, verification ends and the next pass continues. Raises
        `InvalidLogitsError`, and `GuideError` if the constraint allows no token or exceeds its
        limits.
        """

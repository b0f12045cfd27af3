"""Exact match: a candidate is accepted if it is the token that the target chooses.

`sample` gets the arguments that plain autoregressive decoding would use. While the chosen token is
a candidate below the current node, verification steps into it. The first chosen token that is not a
candidate is the correction. So the text does not depend on the candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from card.cache import ROOT, Candidates, Finish, SlotRequest
from card.constraints.constraint import Constraint
from card.sampling import History, Likeliest, likeliest, log_probability, sample


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


class Exact:
    """Accepts a candidate that equals the target's own choice; the base of other rules.

    lossless  the text equals the text of plain decoding
    """

    lossless: ClassVar[bool] = True

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
        children = children_of(candidates)
        result = VerifyResult()
        node = ROOT
        while result.finish is Finish.RUNNING:
            row = logits.row(1 + node)
            allowed = None
            if constraint is not None and (allowed := constraint.allowed()) is None:
                break  # its mask is not ready, so the rest waits for another pass
            token = sample(row, history, request.parameters, allowed)
            child = children.get((node, token))
            if child is None and constraint is None and token not in request.parameters.end_ids:
                child = self.kept_mismatch(logits, candidates, node, history, request)
                if child is not None:
                    token = candidates.tokens[child]
                    result.foreign += 1
            result.rows.append(1 + node)
            result.tokens.append(token)
            result.accepted.append(child is not None)
            result.log_probabilities.append(
                log_probability(row, token) if request.log_probabilities else 0.0
            )
            if request.likeliest:
                result.likeliest.append(likeliest(row, request.likeliest))
            history.append(token)
            result.finish = finish_of(token, history, request)
            if constraint is not None and result.finish is Finish.RUNNING:
                constraint.advance([token])
            if child is None:
                result.rejected = node in candidates.parents
                break
            node = child
        return result

    def kept_mismatch(
        self,
        logits: TargetRows,
        candidates: Candidates,
        node: int,
        history: History,
        request: SlotRequest,
    ) -> int | None:
        """A candidate below `node` that is accepted although the target chooses another token,
        which does not end the text. None: there is no such candidate. `history` stays unchanged."""
        return None


def children_of(candidates: Candidates) -> dict[tuple[int, int], int]:
    """Candidates by parent (or `ROOT`) and token; the first of several equal ones."""
    children: dict[tuple[int, int], int] = {}
    for index, edge in enumerate(zip(candidates.parents, candidates.tokens, strict=True)):
        children.setdefault(edge, index)
    return children


def finish_of(token: int, history: History, request: SlotRequest) -> Finish:
    """Whether, and why, the text ends with this token, the last one of `history`."""
    if token in request.parameters.end_ids:
        return Finish.END_ID
    if history.generated >= request.max_tokens:
        return Finish.LENGTH
    return Finish.RUNNING


NO_CANDIDATE = -2
"""Stands for a choice of the target that no candidate was."""


class Outcome(NamedTuple):
    """What a pass gave one session.

    drafted   candidates that the draft's tree gave, found before any was left out
    verified  candidates in the pass
    accepted  of these
    rejected  one of them was wrong
    chances   of each step along what was accepted, and of the one behind it that was rejected: how
              likely the draft's first candidate there was, given those above it
    agreed    steps, of these, in which that was the target's choice
    ngram_chances, ngram_agreed  the same of the steps behind, which have candidates of n-grams
    """

    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    rejected: bool = False
    chances: Sequence[float] = ()
    agreed: int = 0
    ngram_chances: Sequence[float] = ()
    ngram_agreed: int = 0

    @classmethod
    def of(
        cls, candidates: Candidates, drafted: int, path: Sequence[int], *, rejected: bool
    ) -> Outcome:
        """Of a pass that verified these and accepted the ones in `path`, each below the one before.

        drafted  how many of them the draft gave: the first ones
        """
        first: dict[int, int] = {}
        for index, parent in enumerate(candidates.parents):
            first.setdefault(parent, index)
        chances: tuple[list[float], list[float]] = ([], [])
        agreed, above, chance = [0, 0], ROOT, 1.0
        for chosen in [*path, NO_CANDIDATE] if rejected else path:
            if (likeliest := first.get(above)) is None:
                break
            by_ngrams = likeliest >= drafted
            chances[by_ngrams].append(candidates.chances[likeliest] / chance if chance else 0.0)
            agreed[by_ngrams] += chosen == likeliest
            above, chance = chosen, candidates.chances[chosen] if chosen >= 0 else 0.0
        counts = drafted, len(candidates), len(path), rejected
        return cls(*counts, chances[False], agreed[False], chances[True], agreed[True])

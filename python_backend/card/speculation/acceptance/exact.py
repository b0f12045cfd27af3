"""Exact match: a candidate is accepted if it is the token that the target chooses.

`sample` gets the arguments that plain autoregressive decoding would use. While the chosen token is
a candidate below the current node, verification steps into it. The first chosen token that is not a
candidate is the correction. So the text does not depend on the candidates.
"""

from __future__ import annotations

from typing import ClassVar

from card.cache import ROOT, Candidates, Finish, SlotRequest
from card.constraints.constraint import Constraint
from card.sampling import History, likeliest, log_probability, sample
from card.speculation.acceptance.interface import AcceptanceConfig, TargetRows, VerifyResult


class Exact:
    """Accepts a candidate that equals the target's own choice."""

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

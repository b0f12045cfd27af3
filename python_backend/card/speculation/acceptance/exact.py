"""Exact match: a candidate is accepted where it is the token that the target chooses anyway.

`sample` is called with the arguments that plain autoregressive decoding would use. As long as the
chosen token is a candidate below the current node, verification steps into it; the first token that
is none is the correction. So the text is the target's, whatever the candidates were.
"""

from __future__ import annotations

from typing import ClassVar

from card.cache import ROOT, Candidates, Finish, SlotRequest
from card.constraints.constraint import Constraint
from card.sampling import History, likeliest, log_probability, sample
from card.speculation.acceptance.interface import AcceptanceConfig, TargetRows, VerifyResult


class Exact:
    """Equality with the target's own choice."""

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
                break  # its mask is not ready: the rest waits for another pass
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
        """A candidate below `node` that is accepted though the target's choice, which ends no text,
        is another token. `history` is left as it is. None: there is no such candidate."""
        return None


def children_of(candidates: Candidates) -> dict[tuple[int, int], int]:
    """The candidate with this token below this one, or below `ROOT`; the first of several."""
    children: dict[tuple[int, int], int] = {}
    for index, edge in enumerate(zip(candidates.parents, candidates.tokens, strict=True)):
        children.setdefault(edge, index)
    return children


def finish_of(token: int, history: History, request: SlotRequest) -> Finish:
    """Whether the text ends with this token, the last one of `history`."""
    if token in request.parameters.end_ids:
        return Finish.END_ID
    if history.generated >= request.max_tokens:
        return Finish.LENGTH
    return Finish.RUNNING

"""Verify and correct: a walk along the candidates with the target's own choices.

`sample` is called with the arguments that plain autoregressive decoding would use. As long as the
chosen token is a candidate below the current node the walk steps into it; the first token that is
none is the correction. There is no acceptance rule besides equality, so the text is the target's
whatever the candidates were.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from card.cache import ROOT, Candidates, Finish, SlotRequest
from card.constraints.compiler import Constraint
from card.engines import Logits
from card.sampling import History, Likeliest, likeliest, log_probability, sample


@dataclass(slots=True)
class Verdict:
    """What one target pass decided for one session.

    tokens             committed tokens in order: accepted candidates, then at most one correction
    from_cache         whether each token was a candidate
    log_probabilities  of each token under the unprocessed logits; zeros unless asked for
    likeliest          ids at each token's position under the same; empty unless asked for
    rows               the rows of the pass that lie on the committed path, in order
    corrects           whether the last token took the place of candidates that were wrong
    """

    tokens: list[int] = field(default_factory=list)
    from_cache: list[bool] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    likeliest: list[Likeliest] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    finish: Finish = Finish.RUNNING
    corrects: bool = False

    @property
    def accepted(self) -> int:
        return sum(self.from_cache)


def verify(
    logits: Logits,
    first_row: int,
    candidates: Candidates,
    history: History,
    request: SlotRequest,
    constraint: Constraint | None = None,
) -> Verdict:
    """Walk the candidates; `history` and the constraint's text grow by what is committed.

    Row `first_row` of `logits` belongs to the last committed token, the following rows to the
    candidates in order. Rows of the pass are numbered from 0 as in `logits`.

    Raises `GuideError` if the constraint allows no token, or does not get to know which.
    """
    children: dict[tuple[int, int], int] = {}
    for index, edge in enumerate(zip(candidates.parents, candidates.tokens, strict=True)):
        children.setdefault(edge, index)
    verdict = Verdict()
    node = ROOT
    while verdict.finish is Finish.RUNNING:
        row = logits.row(first_row + 1 + node)
        allowed = None if constraint is None else constraint.allowed()
        token = sample(row, history, request.parameters, allowed)
        child = children.get((node, token))
        verdict.rows.append(first_row + 1 + node)
        verdict.tokens.append(token)
        verdict.from_cache.append(child is not None)
        verdict.log_probabilities.append(
            log_probability(row, token) if request.log_probabilities else 0.0
        )
        if request.likeliest:
            verdict.likeliest.append(likeliest(row, request.likeliest))
        history.append(token)
        if constraint is not None:
            constraint.advance([token])
        verdict.finish = _finish(token, history, request)
        if child is None:
            verdict.corrects = node in candidates.parents
            break
        node = child
    return verdict


def _finish(token: int, history: History, request: SlotRequest) -> Finish:
    if token in request.parameters.end_ids:
        return Finish.END_ID
    if history.generated >= request.max_tokens:
        return Finish.LENGTH
    return Finish.RUNNING

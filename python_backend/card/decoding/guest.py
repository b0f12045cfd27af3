"""Sessions that an engine of another project decodes: what it chose is committed."""

from __future__ import annotations

from collections.abc import Sequence

from card.cache import Finish, SlotRequest, TargetSlot, num_agreed
from card.decoding.session import Query, TargetSession
from card.sampling import History, Likeliest
from card.speculation.acceptance import VerifyResult


def follow(
    slot: TargetSlot, session_id: int, request: SlotRequest, vocabulary: int
) -> TargetSession:
    """The session as it is committed so far. It proposes no n-grams."""
    history = History(request.prompt, len(request.prompt) + request.max_tokens)
    for token in slot.output(0, slot.committed(session_id)).tolist():
        history.append(token)
    session = TargetSession(slot, session_id, request, history, 0, vocabulary)
    session.proposes = False
    return session


def commit(
    session: TargetSession,
    tokens: list[int],
    query: Query,
    finish: Finish = Finish.RUNNING,
    log_probabilities: Sequence[float] = (),
    likeliest: Sequence[Likeliest] = (),
) -> VerifyResult:
    """Commit the tokens of a pass that verified the candidates of `query`. The engine accepts
    candidates while they equal its own choice; the token behind them is its own."""
    for token in tokens:
        session.history.append(token)
    chain = query.candidates.tokens
    agreed = num_agreed(tokens, chain)
    result = VerifyResult(
        tokens,
        [place < agreed for place in range(len(tokens))],
        list(log_probabilities) or [0.0] * len(tokens),
        list(likeliest),
        rows=list(range(agreed + 1)),
        finish=finish,
        rejected=agreed < min(len(chain), len(tokens)),
    )
    session.commit(result, query)
    return result

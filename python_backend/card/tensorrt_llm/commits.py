"""Publishing what the runtime decided, with the account of what it accepted."""

from __future__ import annotations

import time
from collections.abc import Sequence

from card.cache import Candidates, Finish, Step, TargetSlot


def publish(
    slot: TargetSlot,
    tokens: list[int],
    offered: Sequence[int] | None,
    finish: Finish = Finish.RUNNING,
    log_probabilities: Sequence[float] = (),
) -> None:
    """Commit the tokens of a target pass, and of passes without candidates behind it.

    There are such passes where nobody knew the request yet, or the time for queries was up.

    offered  the candidates of the first pass; the runtime accepts them while they equal its own
             choice, and the token behind them is its own, like every later one; None: not known,
             all tokens count as one pass's
    """
    accepted = _accepted(tokens, offered or ())
    # Counted first: whoever sees the last token sees all there is to count.
    if offered is None:
        slot.count_step(len(tokens), 0, 0, rejected=False)
    elif tokens:
        rejected = accepted < len(offered) and tokens[accepted] != offered[accepted]
        slot.count_step(accepted + 1, accepted, len(offered), rejected=rejected)
        for _ in tokens[accepted + 1 :]:
            slot.count_step(1, 0, 0, rejected=False)
    if slot.is_traced:
        chain = Candidates.chain(list(offered or ()), [])
        slot.trace(Step(chain, len(chain), accepted, len(tokens), queried_ns=time.monotonic_ns()))
    slot.commit(
        tokens,
        [index < accepted for index in range(len(tokens))],
        list(log_probabilities) or [0.0] * len(tokens),
        finish,
    )


def _accepted(tokens: list[int], offered: Sequence[int]) -> int:
    """How many candidates the tokens begin with; the last token is never one."""
    accepted = 0
    for token, candidate in zip(tokens[:-1], offered, strict=False):
        if token != candidate:
            break
        accepted += 1
    return accepted

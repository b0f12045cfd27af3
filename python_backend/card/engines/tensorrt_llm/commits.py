"""Publishing what the runtime decided, with the account of what it accepted."""

from __future__ import annotations

from collections.abc import Sequence

from card.cache import Finish, TargetSlot


def publish(
    slot: TargetSlot,
    tokens: list[int],
    offered: Sequence[int],
    finish: Finish = Finish.RUNNING,
    log_probabilities: Sequence[float] = (),
) -> None:
    """Commit the tokens of one target pass.

    offered  the candidates of that pass; the runtime accepts them while they equal its own choice,
             and the last token is always its own
    """
    accepted = 0
    for token, candidate in zip(tokens[:-1], offered, strict=False):
        if token != candidate:
            break
        accepted += 1
    # Counted first: whoever sees the last token sees all there is to count.
    if tokens:
        corrects = accepted < len(offered) and tokens[-1] != offered[accepted]
        slot.count_step(len(tokens), accepted, len(offered), corrects=corrects)
    slot.commit(
        tokens,
        [index < accepted for index in range(len(tokens))],
        list(log_probabilities) or [0.0] * len(tokens),
        finish,
    )

"""Who may run when. A pacing is two predicates; everything else is shared.

autoregressive     the draft never runs, the target never looks at the cache
draft-then-verify  the draft makes γ passes while the target waits, then the other way round
CARD               nobody waits (arXiv 2508.04462)
"""

from __future__ import annotations

from card.cache import Decoding

SETTLED = 1 << 30
"""Passes reported by a draft that has nothing left to grow before the next commit."""


def draft_may_run(decoding: Decoding, gamma: int, passes: int) -> bool:
    """Whether the draft may make another pass; `passes` were made since the last commit."""
    if decoding is Decoding.AUTOREGRESSIVE:
        return False
    if decoding is Decoding.DRAFT_THEN_VERIFY:
        return passes < gamma
    return True


def target_may_run(decoding: Decoding, gamma: int, passes: int, *, draft_lives: bool) -> bool:
    """Whether the target may verify; `passes` were made below the last committed token.

    A dead draft is never waited for, whatever the pacing.
    """
    if decoding is Decoding.DRAFT_THEN_VERIFY:
        return passes >= gamma or not draft_lives
    return True


def target_queries(decoding: Decoding) -> bool:
    """Whether the target looks for candidates at all."""
    return decoding is not Decoding.AUTOREGRESSIVE

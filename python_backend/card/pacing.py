"""Who may run when. A pacing is two predicates; everything else is shared.

autoregressive     the draft never runs, the target never looks at the cache
draft-then-verify  the draft makes γ passes while the target waits, then the other way round
PEARL              both run, in rounds of γ (arXiv 2408.11850). Pre-verify: while the draft makes
                   its γ passes the target verifies the first of them, which is the token it
                   commits by itself. Post-verify: while the target verifies a chunk the draft
                   makes the next γ passes. Whoever ends a round first waits for the other.
CARD               nobody waits (arXiv 2508.04462). Only while the target reads the prompt the draft
                   keeps to a head start and leaves the cores to it: there is nothing to correct yet
"""

from __future__ import annotations

from card.cache import Decoding

SETTLED = 1 << 30
"""Passes reported by a draft that has nothing left to grow before the next commit."""

HEAD_START = 12
"""Passes of CARD's draft before the first commit: a tree of any use to the first queries."""


def draft_may_run(
    decoding: Decoding, gamma: int, passes: int, inherited: int = 0, *, begun: bool = True
) -> bool:
    """Whether the draft may make another pass; `passes` were made since the last commit.

    inherited  candidates, one behind the other, that this commit left standing (PEARL): below a
               corrected token none (pre-verify), else what is left of the chunk (post-verify)
    begun      whether the target has committed anything
    """
    if decoding is Decoding.AUTOREGRESSIVE:
        return False
    if decoding is Decoding.DRAFT_THEN_VERIFY:
        return passes < gamma
    if decoding is Decoding.PEARL:
        unfinished = max(0, gamma - 1 - inherited) if inherited else 0
        return passes < unfinished + gamma
    return begun or passes < HEAD_START


def target_may_run(
    decoding: Decoding, gamma: int, passes: int, *, draft_lives: bool, ahead: int = 0
) -> bool:
    """Whether the target may verify; `passes` were made below the last committed token.

    ahead  candidates, one behind the other, below the last committed token (PEARL): none means
           pre-verify, and a chunk is whole with γ - 1 because the target's own token is its first

    A dead draft is never waited for, whatever the pacing.
    """
    if decoding is Decoding.DRAFT_THEN_VERIFY:
        return passes >= gamma or not draft_lives
    if decoding is Decoding.PEARL:
        is_whole = ahead >= gamma - 1 or passes >= gamma
        return not ahead or is_whole or not draft_lives
    return True


def target_queries(decoding: Decoding) -> bool:
    """Whether the target looks for candidates at all."""
    return decoding is not Decoding.AUTOREGRESSIVE

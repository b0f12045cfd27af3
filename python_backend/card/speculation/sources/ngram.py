"""N-gram proposals behind a chain that left rows unused, or alone."""

from __future__ import annotations

from typing import ClassVar

from card.cache import Candidates
from card.speculation.sources.interface import QueriedSession


class NgramSource:
    """Asks the session's `NgramProposer`; each proposal is as likely as its hit rate says."""

    needs_draft: ClassVar[bool] = False

    def candidates(self, session: QueriedSession, behind: Candidates, limit: int) -> Candidates:
        if not behind.is_chain:
            return behind
        proposer = session.proposer
        proposed = proposer.propose(behind.tokens, limit - len(behind))
        if not proposed:
            return behind
        chances = list(behind.chances)
        chance = chances[-1] if chances else 1.0
        for _ in proposed:
            chance *= proposer.hit_rate
            chances.append(chance)
        return Candidates.chain([*behind.tokens, *proposed], chances)

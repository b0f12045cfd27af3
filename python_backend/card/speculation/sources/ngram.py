"""N-gram proposals behind a chain that left rows unused, or alone (Cacheback, arXiv 2511.21699).

If a query may have several paths, n-grams alone form a trie.
"""

from __future__ import annotations

from typing import ClassVar

from card.cache import LEAST_CHANCE, Candidates
from card.speculation.sources.interface import QueriedSession, Source


class NgramSource(Source):
    """Proposes n-grams of the session's `NgramProposer`."""

    needs_draft: ClassVar[bool] = False

    def __init__(self, query: str = "chain", branches: int = 1) -> None:
        self._branches = branches

    def candidates(
        self, session: QueriedSession, behind: Candidates, limit: int, least: float = LEAST_CHANCE
    ) -> Candidates:
        if not behind.is_chain:
            return behind
        chance = behind.chances[-1] if behind.chances else 1.0
        found = session.proposer.candidates(
            behind.tokens, limit - len(behind), self._branches, least / max(chance, least)
        )
        return behind.followed_by(found)

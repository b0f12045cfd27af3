"""What the target can ask for candidates before a pass."""

from __future__ import annotations

from typing import ClassVar, Protocol

from card.cache import LEAST_CHANCE, Candidates, SlotRequest, Tree
from card.sampling import History
from card.speculation.acceptance import TargetRows, VerifyResult
from card.speculation.ngram import NgramProposer


class QueriedSession(Protocol):
    """One session as sources see it."""

    @property
    def request(self) -> SlotRequest: ...

    @property
    def history(self) -> History:
        """Prompt and committed output."""

    @property
    def proposer(self) -> NgramProposer:
        """It has read the whole history."""

    def tree(self) -> Tree | None:
        """A snapshot of what the draft published."""


class Source:
    """One way to find candidates.

    needs_draft  the candidates come from the draft's process
    """

    needs_draft: ClassVar[bool]

    def __init__(self, query: str, branches: int) -> None:
        """What `make_sources` is given."""

    def candidates(
        self, session: QueriedSession, behind: Candidates, limit: int, least: float = LEAST_CHANCE
    ) -> Candidates:
        """`behind`, which sources before this one found, with what this one adds; at most `limit`
        candidates in all.

        least  candidates less likely than this are worth no row: a source may leave them out
        """
        raise NotImplementedError

    def learn(
        self,
        session: QueriedSession,
        verified: Candidates,
        result: VerifyResult,
        rows: TargetRows,
    ) -> None:
        """What became of candidates, once the session has committed it; `rows` as in
        `AcceptanceRule.verify`."""

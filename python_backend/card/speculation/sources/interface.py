"""The interface of sources, which the target queries for candidates before a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from card.cache import LEAST_CHANCE, Candidates, SlotRequest, Tree
from card.sampling import History
from card.speculation.acceptance import TargetRows, VerifyResult


class Proposer(Protocol):
    """A session's n-grams (`NgramProposer`)."""

    def candidates(
        self, behind: Sequence[int], limit: int, branches: int, least: float
    ) -> Candidates:
        """At most `limit` likely continuations of the text and `behind`, in `branches` branches."""

    def suppose(self, tokens: Sequence[int]) -> None:
        """Store the n-grams of tokens that may follow the text."""


class QueriedSession(Protocol):
    """A source's view of one session."""

    @property
    def request(self) -> SlotRequest: ...

    @property
    def history(self) -> History:
        """Prompt and committed output."""

    @property
    def proposer(self) -> Proposer:
        """The session's n-gram proposer, which has read the whole history."""

    def tree(self) -> Tree | None:
        """A snapshot of the tree that the draft published."""


class Source:
    """One way to find candidates.

    needs_draft  the candidates come from the draft's process
    learns       `learn` is called after each verification
    """

    needs_draft: ClassVar[bool]
    learns: ClassVar[bool] = False

    def __init__(self, query: str, branches: int) -> None:
        """Takes the arguments of `make_sources`."""

    def candidates(
        self, session: QueriedSession, behind: Candidates, limit: int, least: float = LEAST_CHANCE
    ) -> Candidates:
        """`behind`, the candidates of the sources before, with those of this one; at most `limit`
        candidates in all.

        least  least chance of a candidate worth a row; a source may leave out others
        """
        raise NotImplementedError

    def learn(
        self,
        session: QueriedSession,
        verified: Candidates,
        result: VerifyResult,
        rows: TargetRows,
    ) -> None:
        """Learn the result of a verification after its commit; `rows` as in
        `Exact.verify`."""

"""Ouroboros (arXiv 2402.13720): n-grams, and phrases from rejected tails.

A pass also computes the target's choices behind a rejected candidate. As long as these agree with
the candidates there, the candidates form a phrase, which may well follow the correction. The
target's first differing token ends the phrase. Phrases are proposed behind a chain, like n-grams.
Their recent hit rate is their probability.
"""

from __future__ import annotations

from typing import ClassVar

from card.cache import Candidates
from card.speculation.acceptance import TargetRows, VerifyResult
from card.speculation.sources.interface import QueriedSession
from card.speculation.sources.ngram import NgramSource


class PhraseSource(NgramSource):
    """Adds the phrases of rejected tails to the session's `NgramProposer`."""

    learns: ClassVar[bool] = True

    def learn(
        self,
        session: QueriedSession,
        verified: Candidates,
        result: VerifyResult,
        rows: TargetRows,
    ) -> None:
        if result.rejected and verified.is_chain:
            session.proposer.suppose(phrase_behind(result.num_accepted, verified, rows))


def phrase_behind(wrong: int, verified: Candidates, rows: TargetRows) -> list[int]:
    """The phrase behind the rejected candidate number `wrong` of a chain: the candidates there as
    far as the target agrees, then one token of its own."""
    phrase: list[int] = []
    for row in range(1 + wrong, 1 + len(verified)):
        token = int(rows.row(row).argmax())
        phrase.append(token)
        if verified.tokens[row : row + 1] != [token]:
            break
    return phrase

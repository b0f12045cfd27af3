"""Ouroboros (arXiv 2402.13720): n-grams, and what becomes of a tail that was rejected.

Where the target refuses a candidate, it has read those behind it too. What it would have said there
stands in the pass: as long as it agrees with them they are a phrase, which may well follow the
correction. The first token of its own ends the phrase. Phrases are proposed behind a chain, as
n-grams are, and are as likely as phrases were of late.
"""

from __future__ import annotations

from card.cache import Candidates
from card.speculation.acceptance import TargetRows, VerifyResult
from card.speculation.sources.interface import QueriedSession
from card.speculation.sources.ngram import NgramSource


class PhraseSource(NgramSource):
    """Asks the session's `NgramProposer`, which it tells what rejected tails hold."""

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
    """What the target says behind the candidate number `wrong` of a chain, which it refused: the
    candidates there as far as it agrees, and one token of its own."""
    phrase: list[int] = []
    for row in range(1 + wrong, 1 + len(verified)):
        token = int(rows.row(row).argmax())
        phrase.append(token)
        if verified.tokens[row : row + 1] != [token]:
            break
    return phrase

"""What n-grams of one text may be told by others: a table frozen from a corpus, and one that the
texts with one salt share."""

from __future__ import annotations

from collections import OrderedDict

from card.cache import NO_SALT
from card.speculation.ngram import OWN_RATES, Followers, FollowerTable, NgramProposer

MOST_TABLES = 64
"""Salts whose tables are kept; that of the least recently served one goes."""


class NgramMemory:
    """Makes the proposer of every session.

    shares  whether the texts with one salt share a table; no two salts ever do, and texts without
            one tell nobody anything
    frozen  a table for everybody
    """

    def __init__(self, *, shares: bool = False, frozen: Followers | None = None) -> None:
        self._shares = shares
        self._frozen = frozen
        self._tables: OrderedDict[bytes, FollowerTable] = OrderedDict()

    def proposer(self, salt: bytes) -> NgramProposer:
        return NgramProposer(self._table(salt), self._frozen, OWN_RATES)

    def _table(self, salt: bytes) -> FollowerTable | None:
        if not self._shares or salt == NO_SALT:
            return None
        table = self._tables.setdefault(salt, FollowerTable())
        self._tables.move_to_end(salt)
        if len(self._tables) > MOST_TABLES:
            self._tables.popitem(last=False)
        return table

"""What n-grams of one text may be told by others: a table frozen from a corpus, and one that the
texts of a tenant share."""

from __future__ import annotations

from collections import OrderedDict

from card.speculation.ngram import FollowerTable, NgramProposer

NO_TENANT = 0
"""Of requests that name none: their texts tell nobody anything."""

MOST_TENANTS = 64
"""Tenants whose tables are kept; the least recently served one goes."""


class NgramMemory:
    """Makes the proposer of every session.

    shares  whether the texts of one tenant share a table; no two tenants ever do
    frozen  a table for everybody
    """

    def __init__(self, *, shares: bool = False, frozen: FollowerTable | None = None) -> None:
        self._shares = shares
        self._frozen = frozen
        self._tables: OrderedDict[int, FollowerTable] = OrderedDict()

    def proposer(self, tenant: int) -> NgramProposer:
        return NgramProposer(self._table(tenant), self._frozen)

    def _table(self, tenant: int) -> FollowerTable | None:
        if not self._shares or tenant == NO_TENANT:
            return None
        table = self._tables.setdefault(tenant, FollowerTable())
        self._tables.move_to_end(tenant)
        if len(self._tables) > MOST_TENANTS:
            self._tables.popitem(last=False)
        return table

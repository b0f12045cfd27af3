"""N-gram proposals (Cacheback, arXiv 2511.21699).

Longer proposals are looked up token by token in tables of followers (`ngram_tables`). The recent
hit rate of such answers is their probability.

Draft and target both use proposals. The draft forwards proposals beside the nodes that it expands:
a proposal among a node's best children is expanded already, so one pass grows more than one layer.
The target verifies proposals behind a chain that is shorter than its rows. It verifies proposals
alone after a miss, and without a draft; if a query may have several paths, these form a trie.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from itertools import count
from typing import ClassVar

from card.cache import LEAST_CHANCE, NO_SALT, ROOT, Candidates
from card.speculation.ngram_tables import (
    LONGEST_CONTEXT,
    MOST_FOLLOWERS,
    Answer,
    Context,
    Followers,
    FollowerTable,
)
from card.speculation.sources.interface import QueriedSession, Source

_MEMORY = 32
"""Number of recent tokens that decide the hit rates."""

OWN_RATES = (0.2, 0.5, 0.6, 0.7, 0.8)
"""Initial hit rate of the first follower of a context of 1 to 5 tokens in a text's own table
(benchmarks/NOTES.md)."""

_FROZEN_RATES = (0.15, 0.25, 0.3, 0.4, 0.6)
"""Initial hit rates in a table of other texts."""

_HOPED_RATES = (1 / 2, 2 / 3, 3 / 4, 4 / 5, 5 / 6)
"""Initial hit rates of a draft's proposals, which its next pass reviews at little cost."""

JUDGED = _MEMORY
"""Last tokens of a prompt that count for the hit rates; earlier ones would have faded."""

_WORTH_A_ROW = 0.2
"""A less likely proposal costs the draft more than it gains."""


class NgramProposer:
    """Proposes followers of a growing text, from its own table and from given tables.

    length  tokens of the text so far

    shared      a table that learns from this text and from others
    frozen      a table that does not learn
    own_rates   initial hit rate of a context's first follower, by the context's length from 1
    """

    def __init__(
        self,
        shared: FollowerTable | None = None,
        frozen: Followers | None = None,
        own_rates: Sequence[float] = _HOPED_RATES,
    ) -> None:
        self.length = 0
        self._learning = [FollowerTable(), *([shared] if shared is not None else [])]
        self._supposed = FollowerTable()
        self._tables: list[Followers] = [*self._learning, self._supposed]
        if frozen is not None:
            self._tables.append(frozen)
        self._rates = [
            _first_rates(_FROZEN_RATES if table is frozen else own_rates) for table in self._tables
        ]
        self._end: list[Context] = []
        """Every context at the end of the text, longest first."""
        self._at_end: list[Answer] | None = None
        """The tables' answers at the end of the text, None before a query. The next token updates
        their hit rates."""

    def extend(self, tokens: Sequence[int], judged: int | None = None) -> None:
        """Add tokens to the text: update the hit rates, then store the n-grams.

        judged  number of last tokens that update the hit rates, because lookups take most of the
                time; None: all
        """
        self.length += len(tokens)
        first = 0 if judged is None else len(tokens) - judged
        for at, token in enumerate(tokens):
            if at >= first:
                self._judge(token)
            for table in self._learning:
                table.add(self._end, token)
            self._end, self._at_end = _extended(self._end, token), None

    def suppose(self, tokens: Sequence[int]) -> None:
        """Store the n-grams of tokens that may follow the text but are no part of it."""
        end = self._end
        for token in tokens:
            self._supposed.add(end, token)
            end = _extended(end, token)
        self._at_end = None

    def propose(self, behind: Sequence[int], limit: int) -> list[int]:
        """A chain of at most `limit` tokens that may follow the text and `behind`; the chain ends
        where a token is too unlikely for a row of the draft."""
        return self.candidates(behind, limit, least=_WORTH_A_ROW).tokens

    def followers(self, behind: Sequence[int]) -> dict[int, float]:
        """Tokens that may follow the text and `behind`, with their chances."""
        return dict(self._followers(self._answers(self._end_behind(behind))))

    def candidates(
        self, behind: Sequence[int], limit: int, branches: int = 1, least: float = LEAST_CHANCE
    ) -> Candidates:
        """The likeliest continuations of the text and `behind`: at most `limit` nodes of a trie
        that has `branches` leaves or fewer.

        least  nodes less likely than this are left out
        """
        end: Sequence[Context] = self._end_behind(behind)
        return (
            self._chain(end, limit, least)
            if branches == 1
            else self._trie(end, limit, branches, least)
        )

    def _chain(self, end: Sequence[Context], limit: int, least: float) -> Candidates:
        """The chain of likeliest followers."""
        tokens: list[int] = []
        chances: list[float] = []
        above = 1.0
        while len(tokens) < limit:
            token, chance = self._best(self._answers(end))
            above *= chance
            if token is None or above < least:
                break
            tokens.append(token)
            chances.append(above)
            end = _extended(end, token)
        return Candidates.chain(tokens, chances)

    def _trie(self, end: Sequence[Context], limit: int, branches: int, least: float) -> Candidates:
        """A trie that always adds the likeliest of all possible next nodes."""
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        with_child: set[int] = set()
        leaves = 0
        # Possible nodes: chance, a number that keeps the order, parent, token, contexts there.
        found: list[tuple[float, int, int, int, Sequence[Context]]] = []
        order = count()
        above, node = 1.0, ROOT
        while len(tokens) < limit:
            below = self._followers(self._answers(end))
            if leaves == branches:  # every other node would add a branch
                below = below[:1]
            for token, chance in below:
                if above * chance >= least:
                    heapq.heappush(found, (-above * chance, next(order), node, token, end))
            while found and leaves == branches and found[0][2] in with_child:
                heapq.heappop(found)
            if not found:
                break
            chance, _, parent, token, end = heapq.heappop(found)
            leaves += parent in with_child or parent == ROOT
            with_child.add(parent)
            node, above, end = len(tokens), -chance, _extended(end, token)
            tokens.append(token)
            parents.append(parent)
            chances.append(above)
        return Candidates(tokens, parents, chances)

    def _judge(self, token: int) -> None:
        """Update the hit rates of the answers at the text's end with the token that came."""
        answers = self._answers(self._end)
        for (length, row), rates in zip(answers, self._rates, strict=True):
            of_length = rates[length]
            for rank, follower in enumerate(row):
                of_length[rank] += ((follower == token) - of_length[rank]) / _MEMORY

    def _answers(self, end: Sequence[Context]) -> list[Answer]:
        """The answer of each table at the end of a text."""
        if end is not self._end:
            return [table.longest(end) for table in self._tables]
        if self._at_end is None:
            self._at_end = [table.longest(end) for table in self._tables]
        return self._at_end

    def _best(self, answers: Sequence[Answer]) -> tuple[int | None, float]:
        """The likeliest token with its chance; None: there is none."""
        best, chance = None, 0.0
        for (length, row), rates in zip(answers, self._rates, strict=True):
            for follower, rate in zip(row, rates[length], strict=False):
                if rate > chance:
                    best, chance = follower, rate
        return best, chance

    def _followers(self, answers: Sequence[Answer]) -> list[tuple[int, float]]:
        """Each token with its chance, likeliest first."""
        found: dict[int, float] = {}
        for (length, row), rates in zip(answers, self._rates, strict=True):
            for follower, rate in zip(row, rates[length], strict=False):
                if rate > found.get(follower, 0.0):
                    found[follower] = rate
        return sorted(found.items(), key=_chance, reverse=True)

    def _end_behind(self, behind: Sequence[int]) -> list[Context]:
        """Every context at the end of the text and `behind`, longest first."""
        if not behind:
            return self._end
        tail = [*(self._end[0] if self._end else ()), *behind][-LONGEST_CONTEXT:]
        return [tuple(tail[at:]) for at in range(len(tail))]


def _chance(answer: tuple[int, float]) -> float:
    return answer[1]


def _first_rates(of_first: Sequence[float]) -> list[list[float]]:
    """Initial hit rates of a context's followers, by the context's length from 0. Older followers
    have lower rates."""
    return [[rate / (rank + 1) for rank in range(MOST_FOLLOWERS)] for rate in (0.0, *of_first)]


def _extended(end: Sequence[Context], token: int) -> list[Context]:
    """The contexts at the end of a text behind `token`."""
    further = [(*context, token) for context in end[1 - LONGEST_CONTEXT :]]
    further.append((token,))
    return further


MOST_TABLES = 64
"""Most tables, one a salt; the least recently used one is dropped."""


class NgramMemory:
    """Makes the proposer of every session.

    shares  whether texts of one salt share a table. Texts of different salts never share one, and
            texts without a salt share none
    frozen  a table for all sessions
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

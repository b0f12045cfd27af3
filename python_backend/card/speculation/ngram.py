"""N-gram proposals: what followed the last few tokens of a text when they last occurred.

Cacheback (arXiv 2511.21699) keeps tables of followers in the order of their last use. Here a
follower is one token, and a context has 1 to 5: what follows a follower is looked up behind it.
The longest context that a table knows answers. How often such answers were right of late says how
likely they are.

Both sides propose. The draft forwards proposals beside the nodes that it expands: a proposal among
a node's best children is expanded already, so one pass grows more than one layer. The target
verifies proposals behind a chain that is shorter than its rows, or alone: after a miss, and where
there is no draft.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Protocol

from card.cache import LEAST_CHANCE, NO_SALT, ROOT, Candidates

LONGEST_CONTEXT = 5
"""Tokens of context compared at most; shorter contexts are tried when longer ones are new."""

MOST_FOLLOWERS = 4
"""Followers that are kept of one context, as in the program of the paper's authors."""

MOST_CONTEXTS = 1 << 17
"""Contexts of one table, about 40 MB: those of a text of 26,000 tokens."""

_MEMORY = 32
"""About so many tokens decide how likely answers are."""

OWN_RATES = (0.2, 0.5, 0.6, 0.7, 0.8)
"""How often the first follower of a context of 1 to 5 tokens is right in a text's own table, before
any was judged (benchmarks/NOTES.md)."""

_FROZEN_RATES = (0.15, 0.25, 0.3, 0.4, 0.6)
"""The same in a table of other texts."""

_HOPED_RATES = (1 / 2, 2 / 3, 3 / 4, 4 / 5, 5 / 6)
"""Of a draft's proposals, which its next pass judges at little cost."""

JUDGED = _MEMORY
"""Of a prompt's last tokens: what came before them says little any more."""

_WORTH_A_ROW = 0.2
"""A proposal less likely than this costs the draft more than it gains."""

Context = tuple[int, ...]
Answer = tuple[int, tuple[int, ...]]
"""Length of a context that is known, and its followers, the likeliest first; 0 and none, where none
is known."""


class Followers(Protocol):
    """What followed contexts."""

    def longest(self, end: Sequence[Context]) -> Answer:
        """Of the longest of these contexts that is known.

        end  every context at the end of a text, the longest first
        """


class FollowerTable:
    """The latest followers of contexts. Of too many contexts the least recently used one goes."""

    def __init__(self, most_contexts: int = MOST_CONTEXTS) -> None:
        self._most = most_contexts
        self._rows: OrderedDict[Context, tuple[int, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[tuple[Context, tuple[int, ...]]]:
        """Every context with its followers, the least recently used first."""
        return iter(self._rows.items())

    def add(self, end: Sequence[Context], token: int) -> None:
        """The token followed these contexts."""
        rows = self._rows
        for context in end:
            row = rows.get(context)
            if row is None:
                rows[context] = (token,)
                continue
            if row[0] != token:
                others = [follower for follower in row if follower != token]
                rows[context] = (token, *others[: MOST_FOLLOWERS - 1])
            rows.move_to_end(context)
        while len(rows) > self._most:
            rows.popitem(last=False)

    def longest(self, end: Sequence[Context]) -> Answer:
        """The latest follower comes first."""
        rows = self._rows
        if rows:
            for context in end:
                if (row := rows.get(context)) is not None:
                    return len(context), row
        return 0, ()


class NgramProposer:
    """What may follow a growing text, by its own table and by others that it is given.

    hit_rate  how often it had a proposal of late and the likeliest one was right, in [0, 1]
    length    tokens of the text so far

    shared      a table that learns from this text and from others
    frozen      a table that learns nothing
    own_rates   how often the first follower of a context is right before any was judged, by the
                context's length from 1
    """

    def __init__(
        self,
        shared: FollowerTable | None = None,
        frozen: Followers | None = None,
        own_rates: Sequence[float] = _HOPED_RATES,
    ) -> None:
        self.hit_rate: float = 0.0
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
        """Every context at the end of the text, the longest first."""
        self._at_end: list[Answer] | None = None
        """What tables answer there, if anybody has asked: the token that comes is judged by what
        was proposed."""

    def extend(self, tokens: Sequence[int], judged: int | None = None) -> None:
        """The text grew: learn how good its proposals would have been, then store its n-grams.

        judged  tokens at the end whose proposals count, for looking them up takes most of the time;
                None: all
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
        """These tokens may follow the text, though nobody wrote them."""
        end = self._end
        for token in tokens:
            self._supposed.add(end, token)
            end = _extended(end, token)
        self._at_end = None

    def propose(self, behind: Sequence[int], limit: int) -> list[int]:
        """At most `limit` tokens that may follow the text and `behind`, one behind the other, as
        long as each is likely enough to be worth a row of the draft."""
        return self.candidates(behind, limit, least=_WORTH_A_ROW).tokens

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
        """The likeliest follower behind the likeliest follower."""
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
        """The likeliest node of all that may come next, again and again."""
        tokens: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        with_child: set[int] = set()
        leaves = 0
        # What may come next: chance, a number that keeps order, node above, token, contexts there.
        found: list[tuple[float, int, int, int, Sequence[Context]]] = []
        order = count()
        above, node = 1.0, ROOT
        while len(tokens) < limit:
            below = self._followers(self._answers(end))
            if leaves == branches:  # the others would be branches more
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
        """How right the answers at the text's end would have been."""
        answers = self._answers(self._end)
        best, _ = self._best(answers)
        for (length, row), rates in zip(answers, self._rates, strict=True):
            of_length = rates[length]
            for rank, follower in enumerate(row):
                of_length[rank] += ((follower == token) - of_length[rank]) / _MEMORY
        self.hit_rate += ((best == token) - self.hit_rate) / _MEMORY

    def _answers(self, end: Sequence[Context]) -> list[Answer]:
        """Of each table, to a text that ends so."""
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
        """Each token with its chance, the likeliest first."""
        found: dict[int, float] = {}
        for (length, row), rates in zip(answers, self._rates, strict=True):
            for follower, rate in zip(row, rates[length], strict=False):
                if rate > found.get(follower, 0.0):
                    found[follower] = rate
        return sorted(found.items(), key=_chance, reverse=True)

    def _end_behind(self, behind: Sequence[int]) -> list[Context]:
        """Every context at the end of the text and `behind`, the longest first."""
        if not behind:
            return self._end
        tail = [*(self._end[0] if self._end else ()), *behind][-LONGEST_CONTEXT:]
        return [tuple(tail[at:]) for at in range(len(tail))]


def _chance(answer: tuple[int, float]) -> float:
    return answer[1]


def _first_rates(of_first: Sequence[float]) -> list[list[float]]:
    """By length of the context, from 0, the chance of each of its followers before any was judged:
    the later one came, the worse."""
    return [[rate / (rank + 1) for rank in range(MOST_FOLLOWERS)] for rate in (0.0, *of_first)]


def _extended(end: Sequence[Context], token: int) -> list[Context]:
    """The contexts at the end of a text to which `token` was added."""
    further = [(*context, token) for context in end[1 - LONGEST_CONTEXT :]]
    further.append((token,))
    return further


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

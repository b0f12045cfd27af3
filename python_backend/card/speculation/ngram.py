"""N-gram proposals: what followed the last few tokens of a text when they last occurred.

Prompt lookup (Saxena, 2023) makes such proposals for the target. Here both sides use them where
rows are nearly free and passes are not. The draft forwards proposals beside the nodes that it
expands: a proposal among a node's best children is expanded already, so one pass grows more than
one layer. The target verifies proposals behind a chain that is shorter than its rows, or alone
after a miss.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_CONTEXT = 3
"""Tokens of context compared at most; shorter contexts are tried when longer ones are new."""

_MEMORY = 16
"""About so many tokens decide the hit rate."""

_WORTH_A_ROW = 0.2
"""A proposal less likely than this to be right costs more than it gains."""


class NgramProposer:
    """The latest follower of every context of 1 to 3 tokens in a growing text.

    hit_rate  how often its proposals were right of late, in [0, 1]
    length    tokens of the text so far
    """

    def __init__(self) -> None:
        self.hit_rate: float = 0.5
        self.length = 0
        self._end: list[tuple[int, ...]] = []
        """Every context at the end of the text, the longest first."""
        self._follower: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """The text grew: learn how good its proposals would have been, then store its n-grams."""
        self.length += len(tokens)
        end, follower = self._end, self._follower
        for token in tokens:
            proposal = self._follower_of(end)
            if proposal is not None:
                self.hit_rate += ((proposal == token) - self.hit_rate) / _MEMORY
            for context in end:
                follower[context] = token
            end = _extended(end, token)
        self._end = end

    def propose(self, behind: Sequence[int], limit: int) -> list[int]:
        """At most `limit` tokens that may follow the text and `behind`, one behind the other, as
        long as each is likely enough to be worth a row."""
        end = self._end
        if behind:
            tail = [*(end[0] if end else ()), *behind][-LONGEST_CONTEXT:]
            end = [tuple(tail[at:]) for at in range(len(tail))]
        found: list[int] = []
        chance = self.hit_rate
        while len(found) < limit and chance >= _WORTH_A_ROW:
            token = self._follower_of(end)
            if token is None:
                break
            found.append(token)
            end = _extended(end, token)
            chance *= self.hit_rate
        return found

    def _follower_of(self, end: Sequence[tuple[int, ...]]) -> int | None:
        """The latest follower of the longest of these contexts that has one."""
        for context in end:
            if (token := self._follower.get(context)) is not None:
                return token
        return None


def _extended(end: Sequence[tuple[int, ...]], token: int) -> list[tuple[int, ...]]:
    """The contexts at the end of a text to which `token` was added."""
    further = [(*context, token) for context in end[1 - LONGEST_CONTEXT :]]
    further.append((token,))
    return further

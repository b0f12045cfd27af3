"""Guesses from the text itself: what followed the last few tokens when they last occurred.

Prompt lookup (Saxena, 2023) proposes such guesses to the target. Here both sides use them where
rows are nearly free and passes are not. The draft forwards guesses beside the nodes it expands: a
guess among a node's best children is expanded already, so one pass grows more than one layer. The
target verifies guesses behind a chain that is shorter than its rows, or alone after a miss.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_CONTEXT = 3
"""Tokens of context compared at most; shorter contexts are tried when longer ones are new."""

_MEMORY = 16
"""About so many tokens decide how far guesses are trusted."""

_WORTH_A_ROW = 0.2
"""A guess less likely than this to come true costs more than it gains."""


class TextLookup:
    """The latest follower of every context of 1 to 3 tokens in a growing text.

    trust   how often its guesses came true of late, in [0, 1]
    length  tokens of the text so far
    """

    def __init__(self) -> None:
        self.trust = 0.5
        self.length = 0
        self._tail: list[int] = []
        self._follower: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """The text grew: learn from what its guesses would have been, then remember it."""
        self.length += len(tokens)
        for token in tokens:
            guess = self._guess(self._tail)
            if guess is not None:
                self.trust += ((guess == token) - self.trust) / _MEMORY
            for size in range(1, len(self._tail) + 1):
                self._follower[tuple(self._tail[-size:])] = token
            self._tail = [*self._tail[1 - LONGEST_CONTEXT :], token]

    def guesses(self, behind: Sequence[int], most: int) -> list[int]:
        """Up to `most` tokens that may follow the text and `behind`, each guessed after the one
        before, as long as they are likely enough to be worth a row."""
        tail = [*self._tail, *behind][-LONGEST_CONTEXT:]
        found: list[int] = []
        likelihood = self.trust
        while len(found) < most and likelihood >= _WORTH_A_ROW:
            token = self._guess(tail)
            if token is None:
                break
            found.append(token)
            tail.append(token)
            likelihood *= self.trust
        return found

    def _guess(self, context: Sequence[int]) -> int | None:
        for size in range(min(LONGEST_CONTEXT, len(context)), 0, -1):
            if (token := self._follower.get(tuple(context[-size:]))) is not None:
                return token
        return None

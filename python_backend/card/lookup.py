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
        self._end: list[tuple[int, ...]] = []
        """Every context at the end of the text, the longest first."""
        self._follower: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """The text grew: learn from what its guesses would have been, then remember it."""
        self.length += len(tokens)
        end, follower = self._end, self._follower
        for token in tokens:
            guess = self._follows(end)
            if guess is not None:
                self.trust += ((guess == token) - self.trust) / _MEMORY
            for context in end:
                follower[context] = token
            end = _one_further(end, token)
        self._end = end

    def guesses(self, behind: Sequence[int], most: int) -> list[int]:
        """Up to `most` tokens that may follow the text and `behind`, each guessed after the one
        before, as long as they are likely enough to be worth a row."""
        end = self._end
        if behind:
            tail = [*(end[0] if end else ()), *behind][-LONGEST_CONTEXT:]
            end = [tuple(tail[at:]) for at in range(len(tail))]
        found: list[int] = []
        likelihood = self.trust
        while len(found) < most and likelihood >= _WORTH_A_ROW:
            token = self._follows(end)
            if token is None:
                break
            found.append(token)
            end = _one_further(end, token)
            likelihood *= self.trust
        return found

    def _follows(self, end: Sequence[tuple[int, ...]]) -> int | None:
        """The latest follower of the longest of these contexts that has one."""
        for context in end:
            if (token := self._follower.get(context)) is not None:
                return token
        return None


def _one_further(end: Sequence[tuple[int, ...]], token: int) -> list[tuple[int, ...]]:
    """The contexts at the end of a text to which `token` was added."""
    further = [(*context, token) for context in end[1 - LONGEST_CONTEXT :]]
    further.append((token,))
    return further

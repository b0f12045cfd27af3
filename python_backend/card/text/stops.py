"""Stop strings in a stream of text, wherever tokens happen to be cut."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

_NEVER = "(?!)"
"""A pattern that no text matches."""


class StopStrings:
    """Passes text on until one of the stop strings is complete.

    The stop that is complete first wins (of those that end together, the longest), as if the text
    arrived one character at a time, so the result does not depend on how it was cut. An empty stop
    string never matches.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._by_first: defaultdict[str, list[_StopString]] = defaultdict(list)
        for word in filter(None, words):
            self._by_first[word[0]].append(_StopString(word))
        self._begun: list[_StopString] = []  # what the text ends with the beginning of
        firsts = "|".join(map(re.escape, sorted(self._by_first)))
        self._first = re.compile(firsts or _NEVER)

    @property
    def _held(self) -> int:
        """Characters at the end of the text so far that could begin a stop string."""
        return max((word.matched for word in self._begun), default=0)

    def feed(self, piece: str) -> tuple[int, bool]:
        """How many more characters of the text may be emitted, and whether a stop was met.

        The characters counted are those held back by earlier calls, then those of ``piece``.
        """
        held, read = self._held, 0
        while (read := self._next(piece, read)) < len(piece):
            read += 1
            if length := self._complete(piece[read - 1]):
                self.release()
                return held + read - length, True
        return held + len(piece) - self._held, False

    def release(self) -> int:
        """Number of characters still held back, now that no more text comes."""
        held, self._begun = self._held, []
        return held

    def _next(self, piece: str, start: int) -> int:
        """Where to go on reading: most text has to do with no stop string and is skipped."""
        if self._begun:
            return start
        found = self._first.search(piece, start)
        return found.start() if found else len(piece)

    def _complete(self, character: str) -> int:
        """Length of the longest stop string that the next character completes; 0: of none."""
        beginning = (word for word in self._by_first.get(character, ()) if not word.matched)
        words = [*self._begun, *beginning]
        complete = [word.length for word in words if word.advance(character)]
        self._begun = [word for word in words if word.matched]
        return max(complete, default=0)


class _StopString:
    """One of them, and how much of it the text ends with.

    Knuth, Morris, Pratt, Fast pattern matching in strings (1977): a character costs a few steps
    however long the string is. The table grows with the text, so a request is not held up by it.
    """

    def __init__(self, word: str) -> None:
        self.length = len(word)
        self.matched = 0
        self._word = word
        self._borders = [0, 0]
        """Of so many first characters: the longest beginning, short of all, that is an end too."""

    def advance(self, character: str) -> bool:
        """Take the next character of the text; whether it is the last of the string."""
        self.matched = self._extended(self.matched, character)
        if self.matched == len(self._borders):
            self._borders.append(self._extended(self._borders[-1], character))
        return self.matched == self.length

    def _extended(self, matched: int, character: str) -> int:
        """How much is matched with one more character, when so much was."""
        while matched and self._word[matched] != character:
            matched = self._borders[matched]
        return matched + (self._word[matched] == character)

"""Stop strings in a stream of text, wherever tokens happen to be cut."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on until one of the stop strings is complete.

    The stop that is complete first wins (of those that end together, the longest), as if the text
    arrived one character at a time, so the result does not depend on how it was cut. An empty stop
    string never matches.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(word for word in words if word)
        self._held = ""  # the longest end of the text so far that could begin a stop string

    def feed(self, piece: str) -> tuple[int, bool]:
        """How many more characters of the text may be emitted, and whether a stop was met.

        The characters counted are those held back by earlier calls, then those of ``piece``.
        """
        if not self._words:
            return len(piece), False
        text = self._held + piece
        matches = [
            (start + len(word), start) for word in self._words if (start := text.find(word)) >= 0
        ]
        if matches:
            self._held = ""
            return min(matches)[1], True
        held = max(_overlap(text, word) for word in self._words)
        self._held = text[len(text) - held :]
        return len(text) - held, False

    def release(self) -> int:
        """Number of characters still held back, now that no more text comes."""
        held, self._held = len(self._held), ""
        return held


def _overlap(text: str, word: str) -> int:
    """Length of the longest end of ``text`` that begins ``word`` without completing it."""
    for length in range(min(len(word) - 1, len(text)), 0, -1):
        if text.endswith(word[:length]):
            return length
    return 0

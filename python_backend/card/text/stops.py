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
        self._words = list(filter(None, words))
        self._held = ""
        """What the text ends with that could begin a stop string."""

    def feed(self, piece: str) -> tuple[int, bool]:
        """How many more characters of the text may be emitted, and whether a stop was met.

        The characters counted are those held back by earlier calls, then those of ``piece``.
        """
        text = self._held + piece
        places = {word: text.find(word) for word in self._words}
        met = [(place + len(word), place) for word, place in places.items() if place >= 0]
        if met:
            self._held = ""
            return min(met)[1], True
        held = max((_begun(text, word) for word in self._words), default=0)
        self._held = text[len(text) - held :]
        return len(text) - held, False

    def release(self) -> int:
        """Number of characters still held back, now that no more text comes."""
        held, self._held = len(self._held), ""
        return held


def _begun(text: str, word: str) -> int:
    """Length of the longest end of the text, which does not hold the word, that begins it."""
    place = max(0, len(text) - len(word) + 1)
    while (place := text.find(word[0], place)) >= 0:
        if word.startswith(text[place:]):
            return len(text) - place
        place += 1
    return 0

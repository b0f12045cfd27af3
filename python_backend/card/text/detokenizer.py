"""The text of one session, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from card.text.stops import StopStrings
from card.text.window import TextWindow


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of text that is certain and may be sent."""

    text: str
    accepted_bytes: int
    """Leading bytes (UTF-8) of the text that came from the candidate cache; 0 if the text begins
    with the target's own token. Text belongs to the token that completed its character."""


class Detokenizer:
    """Turns one session's tokens into deltas that concatenate to exactly its text.

    With D = ``tokenizer.decode(..., skip_special_tokens=True)``, the text of ``tokens`` after
    ``prompt`` is what D(prompt + tokens) has beyond the length of D(prompt): as a continuation it
    keeps the leading space that sentencepiece decoders strip from a text of its own. Only if the
    prompt has no text at all does it begin as the tokenizer begins a text. It ends before the
    first complete stop string.

    A character split over tokens, a run of byte tokens and anything that could begin a stop string
    are held back until they are certain.
    """

    stopped: bool
    """A stop string was met; later tokens are ignored."""
    tokens_used: int
    """Tokens pushed so far, up to and including the one that completed the stop string."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], stop_words: Sequence[str] = ()
    ) -> None:
        self.stopped = False
        self.tokens_used = 0
        self._window = TextWindow(tokenizer, prompt)
        self._stops = StopStrings(stop_words)
        self._waiting: list[tuple[str, bool]] = []  # certain text, not emitted: (text, accepted)
        self._accepted = False  # whether the last token came from the cache

    def push(self, tokens: Sequence[int], accepted: Sequence[bool]) -> Delta:
        """The text that these tokens make certain; ``accepted`` says which the cache had.

        Raises ValueError if the two differ in length.
        """
        ready: list[tuple[str, bool]] = []
        for token, is_accepted in zip(tokens, accepted, strict=True):
            if self.stopped:
                break
            self.tokens_used += 1
            self._accepted = bool(is_accepted)
            ready += self._pass_on(self._window.push(int(token)))
        return _delta(ready)

    def finish(self) -> Delta:
        """What was held back, now that no token follows."""
        if self.stopped:
            return Delta("", 0)
        ready = self._pass_on(self._window.flush())
        return _delta(ready + self._take(self._stops.release()))

    def _pass_on(self, piece: str) -> list[tuple[str, bool]]:
        """Puts the last token's text in the queue and takes out what no stop string can claim."""
        if not piece:
            return []
        self._waiting.append((piece, self._accepted))
        count, self.stopped = self._stops.feed(piece)
        return self._take(count)

    def _take(self, count: int) -> list[tuple[str, bool]]:
        """Removes the first ``count`` characters of the waiting text."""
        taken = []
        while count > 0:
            piece, accepted = self._waiting.pop(0)
            if len(piece) > count:
                self._waiting.insert(0, (piece[count:], accepted))
                piece = piece[:count]
            taken.append((piece, accepted))
            count -= len(piece)
        return taken


def _delta(pieces: list[tuple[str, bool]]) -> Delta:
    accepted_bytes = 0
    for piece, accepted in pieces:
        if not accepted:
            break
        accepted_bytes += len(piece.encode())
    return Delta("".join(piece for piece, _ in pieces), accepted_bytes)

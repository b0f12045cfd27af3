"""The text of one session, token by token: whole characters, and stop strings.

Decoders differ in what a token's text depends on: byte-level ones join bytes into characters,
sentencepiece ones strip a space at the start and read a run of byte tokens as one. None looks
further back than a few tokens. So the text that a token adds is the difference of two decodings
of the same few tokens, with and without it.

A stop string may begin or end anywhere inside a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tokenizers import Tokenizer

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
# A character has at most four bytes and a token at least one: behind so many tokens nothing can
# change any more. A window that starts inside a character is in step again after three bytes.
_CONTEXT: Final = 6
_LONGEST: Final = 16  # tokens at which the window is cut back to its context


class TextWindow:
    """The text that each token of one stream adds; the cost does not grow with the stream."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        """Starts after ``prompt``; the prompt's own text is never returned."""
        self._tokenizer = tokenizer
        self._silent = _special_tokens(tokenizer)
        self._bytes = _byte_tokens(tokenizer)
        self._run: list[int] = []  # the open run of byte tokens at the end
        self._tokens = self._end_of(prompt)
        self._shown = len(self._decode(self._tokens))  # characters of the window already returned

    def push(self, token: int) -> str:
        """The text that is certain with this token, whatever follows."""
        if self._adds_nothing(token):
            return ""
        if token in self._bytes:
            # A run of byte tokens is text if all of it is valid, else one replacement character
            # for each byte: nothing of it is certain before another token ends it.
            self._run.append(token)
            return ""
        return self._advance([*self._run, token], final=False)

    def flush(self) -> str:
        """What was held back, as the tokenizer decodes an end of the stream here."""
        return self._advance(self._run, final=True)

    def _advance(self, new: list[int], final: bool) -> str:
        self._tokens += new
        self._run = []
        text = self._decode(self._tokens)
        # A last replacement character may be the beginning of a character still to come.
        held = not final and text.endswith(_REPLACEMENT)
        start, self._shown = self._shown, max(self._shown, len(text) - held)
        if len(self._tokens) > _LONGEST:
            unshown = len(text) - self._shown
            self._tokens = self._tokens[-_CONTEXT:]
            self._shown = len(self._decode(self._tokens)) - unshown
            return text[start : len(text) - unshown]
        return text[start : self._shown]

    def _end_of(self, prompt: Sequence[int]) -> list[int]:
        """The last tokens of the prompt, no fewer than its open run of byte tokens and one more."""
        end: list[int] = []
        in_run = True
        for place in range(len(prompt) - 1, -1, -1):
            token = int(prompt[place])
            if self._adds_nothing(token):
                continue
            end.append(token)
            in_run = in_run and token in self._bytes
            if len(end) >= _CONTEXT and not in_run:
                break
        return end[::-1]

    def _adds_nothing(self, token: int) -> bool:
        """Special tokens and ids that a padded vocabulary has beyond the tokenizer's."""
        return token in self._silent or self._tokenizer.id_to_token(token) is None

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)


# Once for a tokenizer: some have thousands of special tokens, and every request has a stream.
@lru_cache(maxsize=4)
def _special_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(token for token, one in added.items() if one.special)


@lru_cache(maxsize=4)
def _byte_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids of the tokens that stand for single bytes (``<0x0A>``) in sentencepiece vocabularies."""
    if tokenizer.token_to_id("<0x00>") is None:
        return frozenset()
    ids = (tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
    return frozenset(token for token in ids if token is not None)


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

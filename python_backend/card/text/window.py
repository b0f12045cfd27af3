"""A sliding window over a token stream that decodes only what is new.

Decoders differ in what a token's text depends on: byte-level ones join bytes into characters,
sentencepiece ones strip a space at the start and read a run of byte tokens as one. None looks
further back than a few tokens, so the text that a token adds is the difference of two decodings
of the same few tokens, with and without it.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        """Starts after ``prompt``, whose own text is never returned."""
        self._tokenizer = tokenizer
        self._silent = {
            token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special
        }
        self._bytes = _byte_tokens(tokenizer)
        self._run: list[int] = []  # byte tokens at the end whose run is still open
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


def _byte_tokens(tokenizer: Tokenizer) -> set[int]:
    """Ids of the tokens that stand for single bytes (``<0x0A>``) in sentencepiece vocabularies."""
    if tokenizer.token_to_id("<0x00>") is None:
        return set()
    ids = (tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
    return {token for token in ids if token is not None}

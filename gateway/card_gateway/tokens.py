"""The texts of tokens, where an answer tells log-probabilities."""

from __future__ import annotations

from functools import lru_cache

from tokenizers import Tokenizer

_BEFORE = "a"
"""Stands before a token that is decoded: some decoders strip the space at the start of a text."""


class TokenTexts:
    """Says how a token is written, and cuts a text into as many pieces as tokens wrote it.

    The pieces of a generated text are those of the tokenizer, which writes most texts as the model
    did. Where the counts differ, because the model spelt a word otherwise or a stop word took part
    of the text away, the last piece takes the rest, or pieces at the end are empty.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {
            token: added.content
            for token, added in tokenizer.get_added_tokens_decoder().items()
            if added.special
        }
        self._before = tokenizer.encode(_BEFORE, add_special_tokens=False).ids
        self.of = lru_cache(maxsize=1 << 16)(self._of)
        """The text of a token by itself: a special token's name, and replacement characters for
        bytes that are none."""

    def cut(self, text: str, count: int) -> list[str]:
        """`count` pieces that concatenate to `text`; none if `count` is 0."""
        if count == 0:
            return []
        pieces, begin = [], 0
        for _, end in self._tokenizer.encode(text, add_special_tokens=False).offsets:
            end = max(begin, end)
            pieces.append(text[begin:end])
            begin = end
        pieces = (pieces + [""] * count)[:count]
        pieces[-1] += text[sum(map(len, pieces)) :]
        return pieces

    def has(self, token: int) -> bool:
        """Whether a token has that id."""
        return self._tokenizer.id_to_token(token) is not None

    def is_special(self, token: int) -> bool:
        """Whether it is never part of a text."""
        return token in self._special

    def text(self, tokens: list[int]) -> str:
        """What the tokens write."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """How the server reads a text, with what it puts before every prompt or without."""
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def _of(self, token: int) -> str:
        if token in self._special:
            return self._special[token]
        before = self._tokenizer.decode(self._before)
        return str(self._tokenizer.decode([*self._before, token])[len(before) :])

"""The texts of tokens, where an answer tells log-probabilities or what speculation did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

from tokenizers import Encoding, Tokenizer

from card_gateway.generation import Piece, ScoredToken

_BEFORE = "a"
"""Stands before a token that is decoded: some decoders strip the space at the start of a text."""


class TokenTexts:
    """Says how a token is written, and cuts a text into as many pieces as tokens wrote it.

    The pieces are what each token writes by itself. From the first token on that the text does not
    hold so, because it wrote part of a character or a stop word took part of the text away, they
    are those of the tokenizer. Where the counts differ, the last piece takes the rest, or pieces at
    the end are empty.
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

    def cut(self, text: str, tokens: Sequence[int]) -> list[str]:
        """Pieces of these tokens that concatenate to `text`; none if there is no token."""
        if not tokens:
            return []
        ends, end = [0], 0
        for token in tokens:
            piece = "" if self.is_special(token) else self.of(token)
            if not text.startswith(piece, end):
                ends += [end + place for _, place in self._read(text[end:], special=False).offsets]
                break
            end += len(piece)
            ends.append(end)
        ends = [*accumulate(ends, max), *[len(text)] * len(tokens)][: len(tokens)]
        return [text[begin:end] for begin, end in pairwise([*ends, len(text)])]

    def has(self, token: int) -> bool:
        """Whether a token has that id."""
        return self._tokenizer.id_to_token(token) is not None

    def is_special(self, token: int) -> bool:
        """Whether it is never part of a text."""
        return token in self._special

    def text(self, tokens: list[int]) -> str:
        """The text of the tokens together."""
        return str(self._tokenizer.decode_batch([tokens], skip_special_tokens=True)[0])

    def ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """How the server reads a text, with what it puts before every prompt or without."""
        return list(self._read(text, special=add_special_tokens).ids)

    def _read(self, text: str, *, special: bool) -> Encoding:
        # As a batch of one: only then does the library let other threads run meanwhile.
        return self._tokenizer.encode_batch([text], add_special_tokens=special)[0]

    def _of(self, token: int) -> str:
        if token in self._special:
            return self._special[token]
        before = self._tokenizer.decode(self._before)
        return str(self._tokenizer.decode([*self._before, token])[len(before) :])


Event = dict[str, Any]


class TraceTexts:
    """Tells the text of each token once, beside the events of an answer that name it first."""

    def __init__(self, tokens: TokenTexts | None) -> None:
        """`tokens` is None if there is no tokenizer; then texts are missing."""
        self._tokens = tokens
        self._told: set[int] = set()

    def told(self, events: Sequence[Event]) -> dict[str, Any]:
        """`texts` are by id, each as the token is written by itself."""
        named = dict.fromkeys(token for event in events for token in _tokens_of(event))
        new = [token for token in named if token not in self._told]
        self._told.update(new)
        of = self._tokens
        texts = {} if of is None else {str(token): of.of(token) for token in new}
        return {"events": events, "texts": texts}


def _tokens_of(event: Event) -> Iterable[int]:
    yield from event.get("tokens", ())
    for pair in (*event.get("candidates", ()), *event.get("nodes", ())):
        yield pair[0]


Json = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """One token as an answer tells it: its text, log-probability and likeliest rivals."""

    text: str
    log_prob: float | None
    rivals: tuple[tuple[str, float], ...] = ()
    is_special: bool = False

    def as_json(self) -> Json:
        """The token in the form of chats and responses."""
        rivals = [_named(text, value) for text, value in self.rivals]
        return {**_named(self.text, self.log_prob), "top_logprobs": rivals}


@dataclass(frozen=True)
class Scores:
    """texts         of tokens
    alternatives  how many of the likeliest tokens an answer has at each position
    """

    texts: TokenTexts
    alternatives: int

    def of_text(self, piece: Piece) -> list[Told]:
        """The tokens of a piece, each with its part of the piece's text."""
        texts = self.texts.cut(piece.text, [one.token for one in piece.tokens])
        return [
            Told(text, token.log_prob, self._rivals(token))
            for text, token in zip(texts, piece.tokens, strict=True)
        ]

    def of_prompt(self, tokens: Sequence[ScoredToken]) -> list[Told]:
        """Each as it is written by itself."""
        of = self.texts
        return [
            Told(of.of(one.token), one.log_prob, self._rivals(one), of.is_special(one.token))
            for one in tokens
        ]

    def _rivals(self, token: ScoredToken) -> tuple[tuple[str, float], ...]:
        likeliest = token.top[: self.alternatives]
        return tuple((self.texts.of(rival), value) for rival, value in likeliest)


def _named(text: str, log_prob: float | None) -> Json:
    return {"token": text, "logprob": log_prob, "bytes": list(text.encode())}

"""Log-probabilities in an answer: the text of each token, and its likeliest rivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from card_gateway.details import ScoredToken
from card_gateway.generation import Piece
from card_gateway.tokens import TokenTexts

Json = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """One token as an answer tells it: its text, log-probability and likeliest rivals."""

    text: str
    log_prob: float | None
    rivals: tuple[tuple[str, float], ...] = ()
    is_special: bool = False

    def as_json(self) -> Json:
        """As chats and responses have it."""
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
        texts = self.texts.cut(piece.text, len(piece.tokens))
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

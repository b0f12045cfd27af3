"""The JSON of completions, chat completions and the chunks of both."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from typing import Any

from card_gateway.generation import Piece
from card_gateway.tokens import TokenTexts

Json = dict[str, Any]


class Answer(ABC):
    """One request's answer, whole or in chunks.

    tokens        cuts a text for its log-probabilities; None: not asked for
    alternatives  report the chosen token as the likeliest one too
    """

    prefix: str
    kind: str
    chunk_kind: str

    def __init__(self, model: str, tokens: TokenTexts | None, alternatives: bool) -> None:
        self.identity = f"{self.prefix}-{secrets.token_hex(12)}"
        self._model = model
        self._created = int(time.time())
        self._tokens = tokens
        self._alternatives = alternatives

    def whole(self, text: Piece) -> Json:
        """The answer of a request that does not stream."""
        return {
            **self._envelope(self.kind),
            "choices": [self._choice(text)],
            "usage": _usage(text),
        }

    def chunk(self, piece: Piece) -> Json:
        """One event of a stream."""
        return {**self._envelope(self.chunk_kind), "choices": [self._delta(piece)]}

    def usage_chunk(self, last: Piece) -> Json:
        """The event behind the last piece that tells the usage."""
        return {**self._envelope(self.chunk_kind), "choices": [], "usage": _usage(last)}

    def opening(self) -> Json | None:
        """An event before the first piece."""
        return None

    def _envelope(self, kind: str) -> Json:
        return {
            "id": self.identity,
            "object": kind,
            "created": self._created,
            "model": self._model,
        }

    def _scored(self, piece: Piece) -> list[tuple[str, float]] | None:
        """The tokens of a piece with their log-probabilities; None if not asked for."""
        if self._tokens is None:
            return None
        texts = self._tokens.cut(piece.text, len(piece.log_probs))
        return list(zip(texts, piece.log_probs, strict=True))

    @abstractmethod
    def _choice(self, text: Piece) -> Json: ...

    @abstractmethod
    def _delta(self, piece: Piece) -> Json: ...


class CompletionAnswer(Answer):
    """Of `POST /v1/completions`."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"
    _offset = 0

    def _choice(self, text: Piece) -> Json:
        return {
            "index": 0,
            "text": text.text,
            "logprobs": self._log_probs(text),
            "finish_reason": text.finish_reason,
        }

    def _delta(self, piece: Piece) -> Json:
        return self._choice(piece)

    def _log_probs(self, piece: Piece) -> Json | None:
        scored = self._scored(piece)
        if scored is None:
            return None
        offsets = []
        for text, _ in scored:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": [text for text, _ in scored],
            "token_logprobs": [value for _, value in scored],
            "top_logprobs": [{text: value} for text, value in scored]
            if self._alternatives
            else None,
            "text_offset": offsets,
        }


class ChatAnswer(Answer):
    """Of `POST /v1/chat/completions`."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self) -> Json:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return {**self._envelope(self.chunk_kind), "choices": [choice]}

    def _choice(self, text: Piece) -> Json:
        return {
            "index": 0,
            "message": {"role": "assistant", "content": text.text, "refusal": None},
            "logprobs": self._log_probs(text),
            "finish_reason": text.finish_reason,
        }

    def _delta(self, piece: Piece) -> Json:
        return {
            "index": 0,
            "delta": {"content": piece.text} if piece.text else {},
            "logprobs": self._log_probs(piece),
            "finish_reason": piece.finish_reason,
        }

    def _log_probs(self, piece: Piece) -> Json | None:
        scored = self._scored(piece)
        if scored is None:
            return None
        content = []
        for text, value in scored:
            token = {"token": text, "logprob": value, "bytes": list(text.encode())}
            content.append({**token, "top_logprobs": [token] if self._alternatives else []})
        return {"content": content, "refusal": None}


def _usage(text: Piece) -> dict[str, int]:
    return {
        "prompt_tokens": text.prompt_tokens,
        "completion_tokens": text.completion_tokens,
        "total_tokens": text.prompt_tokens + text.completion_tokens,
    }

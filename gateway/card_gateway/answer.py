"""The JSON of completions, chat completions and the chunks of both."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from card_gateway.figures import Usage
from card_gateway.generation import Piece
from card_gateway.tokens import Scores, Told, TraceTexts

Json = dict[str, Any]


class Answer(ABC):
    """One request's answer, whole or in chunks.

    scores  makes log-probabilities; None: not asked for
    """

    prefix: str
    kind: str
    chunk_kind: str

    def __init__(self, model: str, scores: Scores | None) -> None:
        self.identity = ""
        self._model = model
        self._created = int(time.time())
        self._scores = scores
        self._trace: TraceTexts | None = None

    def follow(self, trace: TraceTexts) -> None:
        """Tell in every event of a stream what speculation did."""
        self._trace = trace

    def whole(self, texts: Sequence[Piece], usage: Usage) -> Json:
        """The answer of a request that does not stream."""
        return {
            **self._envelope(self.kind),
            "choices": [self._choice(text) for text in texts],
            "usage": usage.as_json(),
        }

    def chunks(self, piece: Piece) -> list[Json]:
        """The events of a stream that tell of the piece."""
        choice = self._delta(piece)
        if self._trace is not None:
            choice["trace"] = self._trace.told(piece.trace)
        envelope = self._envelope(self.chunk_kind)
        return [envelope | {"choices": [one]} for one in self._apart(choice)]

    def usage_chunk(self, usage: Usage) -> Json:
        """The event behind the last piece that tells the usage."""
        return {**self._envelope(self.chunk_kind), "choices": [], "usage": usage.as_json()}

    def openings(self, count: int) -> list[Json]:
        """Events before the first piece of so many texts."""
        return []

    def _apart(self, choice: Json) -> list[Json]:
        """Split a choice of a stream into the choices of its events."""
        return [choice]

    def _envelope(self, kind: str) -> Json:
        return {
            "id": self.identity,
            "object": kind,
            "created": self._created,
            "model": self._model,
        }

    @abstractmethod
    def _choice(self, text: Piece) -> Json: ...

    @abstractmethod
    def _delta(self, piece: Piece) -> Json: ...


class CompletionAnswer(Answer):
    """Makes the answer of `POST /v1/completions`.

    echoes  what stands before each text: the texts of the prompts, by the index of a text; empty
            where none is wanted
    """

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(
        self,
        model: str,
        scores: Scores | None,
        echoes: Sequence[str] = (),
    ) -> None:
        super().__init__(model, scores)
        self._echoes = dict(enumerate(echoes))
        self._offsets: defaultdict[int, int] = defaultdict(int)

    def _choice(self, text: Piece) -> Json:
        return {
            "index": text.index,
            "text": self._echoes.pop(text.index, "") + text.text,
            "logprobs": self._log_probs(text),
            "finish_reason": text.finish_reason,
        }

    def _delta(self, piece: Piece) -> Json:
        return self._choice(piece)

    def _log_probs(self, piece: Piece) -> Json | None:
        scores = self._scores
        if scores is None:
            return None
        told = [*scores.of_prompt(piece.prompt), *scores.of_text(piece)]
        return {
            "tokens": [token.text for token in told],
            "token_logprobs": [token.log_prob for token in told],
            "top_logprobs": [self._top(token) for token in told] if scores.alternatives else None,
            "text_offset": [self._place(piece.index, token) for token in told],
        }

    def _top(self, token: Told) -> dict[str, float] | None:
        """Log-probabilities by text, with the chosen token. None for a prompt's first token."""
        if token.log_prob is None:
            return None
        found: dict[str, float] = {}
        for text, value in (*token.rivals, (token.text, token.log_prob)):
            found.setdefault(text, value)  # of tokens that are written alike, the likeliest
        return found

    def _place(self, index: int, token: Told) -> int:
        """Where the token begins in the text of that index."""
        place = self._offsets[index]
        self._offsets[index] += 0 if token.is_special else len(token.text)
        return place


class ChatAnswer(Answer):
    """Makes the answer of `POST /v1/chat/completions`."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"
    opening: str | None = ""
    """The content of a stream's first event."""

    def openings(self, count: int) -> list[Json]:
        delta = {"role": "assistant", "content": self.opening}
        rest = {"delta": delta, "logprobs": None, "finish_reason": None}
        envelope = self._envelope(self.chunk_kind)
        return [envelope | {"choices": [{"index": index, **rest}]} for index in range(count)]

    def _choice(self, text: Piece) -> Json:
        return {
            "index": text.index,
            "message": {"role": "assistant", "content": text.text, "refusal": None},
            "logprobs": self._log_probs(text),
            "finish_reason": text.finish_reason,
        }

    def _delta(self, piece: Piece) -> Json:
        return {
            "index": piece.index,
            "delta": {"content": piece.text} if piece.text else {},
            "logprobs": self._log_probs(piece),
            "finish_reason": piece.finish_reason,
        }

    def _apart(self, choice: Json) -> list[Json]:
        """As at OpenAI, the event with the finish reason has no text."""
        if choice["finish_reason"] is None or not choice["delta"]:
            return [choice]
        end = {"index": choice["index"], "delta": {}, "logprobs": None}
        return [
            choice | {"finish_reason": None},
            end | {"finish_reason": choice["finish_reason"]},
        ]

    def _log_probs(self, piece: Piece) -> Json | None:
        if self._scores is None:
            return None
        content = [token.as_json() for token in self._scores.of_text(piece)]
        return {"content": content, "refusal": None}

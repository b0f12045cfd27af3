"""The JSON of a chat in which functions are called."""

from __future__ import annotations

from typing import Any

from card_gateway.answer import ChatAnswer, Json
from card_gateway.generation import Piece
from card_gateway.tokens import TokenTexts
from card_gateway.tools.calls import Call, CallParser, whole_calls


class CallingAnswer(ChatAnswer):
    """Of `POST /v1/chat/completions` with tools."""

    def __init__(self, model: str, tokens: TokenTexts | None, alternatives: bool) -> None:
        super().__init__(model, tokens, alternatives)
        self._parser = CallParser()
        self._called = False

    def _choice(self, text: Piece) -> Json:
        content, calls = self._parsed(text)
        choice = super()._choice(text)
        choice["message"]["content"] = content or (None if calls else "")
        if calls:
            choice["message"]["tool_calls"] = [_json(call) for call in calls]
        return choice | {"finish_reason": self._finish_reason(text)}

    def _delta(self, piece: Piece) -> Json:
        content, calls = self._parsed(piece)
        delta: dict[str, Any] = {"content": content} if content else {}
        if calls:
            delta["tool_calls"] = [{"index": call.index} | _json(call) for call in calls]
        choice = super()._delta(piece)
        return choice | {"delta": delta, "finish_reason": self._finish_reason(piece)}

    def _parsed(self, piece: Piece) -> tuple[str, list[Call]]:
        parts = self._parser.feed(piece.text)
        if piece.finish_reason is not None:
            parts += self._parser.finish()
        content, calls = whole_calls(parts)
        self._called = self._called or bool(calls)
        return content, calls

    def _finish_reason(self, piece: Piece) -> str | None:
        called = self._called and piece.finish_reason == "stop"
        return "tool_calls" if called else piece.finish_reason


def _json(call: Call) -> Json:
    """A whole call or its beginning; of what follows the arguments alone."""
    if not call.id:
        return {"function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}

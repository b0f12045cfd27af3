"""The JSON of a chat in which functions are called."""

from __future__ import annotations

from collections import defaultdict
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from card_gateway.answer import ChatAnswer, Json
from card_gateway.generation import Piece
from card_gateway.scores import Scores
from card_gateway.several import Pieces
from card_gateway.tools.calls import Call, CallParser, whole_calls


class CallingAnswer(ChatAnswer):
    """Of `POST /v1/chat/completions` with tools."""

    opening = None
    """There may be none: clients take an empty text for one."""

    def __init__(self, model: str, scores: Scores | None) -> None:
        super().__init__(model, scores)
        self._parsers = defaultdict[int, CallParser](CallParser)

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
        parser = self._parsers[piece.index]
        parts = parser.feed(piece.text)
        if piece.finish_reason is not None:
            parts += parser.finish()
        return whole_calls(parts)

    def _finish_reason(self, piece: Piece) -> str | None:
        called = self._parsers[piece.index].count and piece.finish_reason == "stop"
        return "tool_calls" if called else piece.finish_reason


async def until_a_call_is_whole(pieces: Pieces) -> Pieces:
    """The text up to the end of its first call, which ends it. It closes `pieces`."""
    parser = CallParser()
    async with aclosing(pieces):
        async for piece in pieces:
            for read, letter in enumerate(piece.text, 1):
                parser.feed(letter)
                if parser.stands_behind_a_call:
                    yield replace(piece, text=piece.text[:read], finish_reason="stop")
                    return
            yield piece


def _json(call: Call) -> Json:
    """A whole call or its beginning; of what follows the arguments alone."""
    if not call.id:
        return {"function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}

"""The JSON of a chat in which functions are called."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import Any

from card_gateway.answer import ChatAnswer, Json
from card_gateway.generation import Piece, Pieces
from card_gateway.tokens import Scores
from card_gateway.tools.calls import Call, CallParser, ObjectScan, Part, whole_calls
from card_gateway.tools.definitions import ToolUse


class CallingAnswer(ChatAnswer):
    """Makes the answer of `POST /v1/chat/completions` with tools."""

    opening = None
    """There may be none: clients take an empty text for one."""

    def __init__(self, model: str, scores: Scores | None) -> None:
        super().__init__(model, scores)
        self._arguments = dict[int, ObjectScan]()
        """Those of the last call of each text in which functions are called."""

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
        content, calls = whole_calls(piece.parts)
        for call in calls:
            if call.id:
                self._arguments[piece.index] = ObjectScan()
            self._arguments[piece.index].end(call.arguments)
        return content, calls

    def _finish_reason(self, piece: Piece) -> str | None:
        """A stop word may cut a call's arguments off: then the client must not call it."""
        arguments = self._arguments.get(piece.index)
        if piece.finish_reason == "stop" and arguments is not None and arguments.has_ended:
            return "tool_calls"
        return piece.finish_reason


async def with_calls(pieces: Pieces, use: ToolUse, *, one: bool) -> Pieces:
    """The pieces of a text with the calls in them. It closes `pieces`.

    one  the first call ends the text

    Where a call is required there is no text beside calls, nor one that `max_tokens` cut off.
    """
    parser = CallParser()
    async with aclosing(pieces):
        async for piece in pieces:
            parts: list[Part]
            behind: str | None = None
            if one:
                parts, behind = parser.feed_one_call(piece.text)
            else:
                parts = parser.feed(piece.text)
            if behind is not None:
                read = piece.text[: len(piece.text) - len(behind)]
                piece = replace(piece, text=read, finish_reason="stop")
            elif piece.finish_reason is not None:
                parts += parser.finish()
            if use.required:
                parts = [part for part in parts if isinstance(part, Call)]
            yield replace(piece, parts=tuple(parts))
            if behind is not None:
                return


def _json(call: Call) -> Json:
    """A whole call or its beginning; of what follows the arguments alone."""
    if not call.id:
        return {"function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}

"""Messages of a chat: what a request may say of them, and how a chat template expects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import from_json

from card_gateway.errors import refused
from card_gateway.limits import MOST_FIELDS, AtMost, Talk


class Part(BaseModel):
    """An object inside a request, of known fields only."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_unknown_nulls(cls, value: Any) -> Any:
        """Clients send back what they were answered, with all that they might have been."""
        if not isinstance(value, dict):
            return value
        AtMost(MOST_FIELDS).check(value)
        return {
            name: it for name, it in value.items() if it is not None or name in cls.model_fields
        }


class HasText(Protocol):
    @property
    def text(self) -> str: ...


class TextPart(Part):
    """One part of a message; images, audio and files are not offered."""

    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = None
    """Accepted, without effect."""


def text_of(content: str | Sequence[HasText]) -> str:
    """The text of content that is a text or a list of parts."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


class FunctionCall(Part):
    """`arguments` is JSON, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(Part):
    """A function that the assistant called in an earlier turn."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None
    """A field of streamed answers, without effect."""

    def plain(self, place: str) -> dict[str, Any]:
        """The call in the form of chat templates: the arguments are an object.

        place  the call's path in the request, for errors

        Raises `ApiError`.
        """
        field = f"{place}.function.arguments"
        function = {
            "name": self.function.name,
            "arguments": _object(self.function.arguments, field),
        }
        return {"id": self.id, "type": self.type, "function": function}


class Message(Part):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Talk[TextPart] | None = None
    name: str | None = None
    refusal: str | None = None
    # What the assistant said beside its text, this one or another model: nothing here reads it.
    reasoning: str | None = None
    reasoning_content: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None
    tool_calls: Talk[ToolCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        return text_of(self.content or self.refusal or "")


def check_messages(messages: Sequence[Message]) -> None:
    """Refuse fields that do not belong to a message's role. Raises `ApiError`."""
    for place, message in enumerate(messages):
        role = message.role
        if message.tool_calls and role != "assistant":
            field = f"messages.{place}.tool_calls"
            raise refused(field, f"{field} is only allowed in messages of the role assistant")
        if role == "tool" and message.tool_call_id is None:
            field = f"messages.{place}.tool_call_id"
            message_ = f"{field} is missing; it must be the id of the call that is answered"
            raise refused(field, message_, "missing_required_parameter")
        if message.content is None and not (message.tool_calls or message.refusal):
            field = f"messages.{place}.content"
            raise refused(field, f"{field} is missing", "missing_required_parameter")


def plain(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as a chat template expects them.

    A tool's message gets the name of the function that it answers: some templates write it. Raises
    `ApiError`.
    """
    called: dict[str, str] = {}
    written = []
    for place, message in enumerate(messages):
        role = "system" if message.role == "developer" else message.role
        one: dict[str, Any] = {"role": role, "content": message.text}
        if message.tool_calls:
            one["tool_calls"] = [
                call.plain(f"messages.{place}.tool_calls.{number}")
                for number, call in enumerate(message.tool_calls)
            ]
            called |= {call.id: call.function.name for call in message.tool_calls}
        if role == "tool":
            identity = message.tool_call_id or ""
            one |= {"tool_call_id": identity, "name": message.name or called.get(identity, "")}
        written.append(one)
    return written


def _object(arguments: str, field: str) -> Any:
    """The arguments as an object, or as their text where a model wrote no JSON. Raises
    `ApiError`."""
    try:
        return from_json(arguments or "{}", allow_inf_nan=False)
    except ValueError as error:
        if "recursion" in str(error):
            raise refused(field, f"{field} is nested more than 200 levels deep") from error
        return arguments

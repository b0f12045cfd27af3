"""The items of a conversation, the messages that they stand for, and those of earlier answers.

Some clients send the id of an item in place of the item, unless they said `store: false`. Items are
kept in this process alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter

from card_gateway.errors import as_json, refused
from card_gateway.limits import Talk
from card_gateway.messages import FunctionCall, Message, Part, ToolCall, text_of


class InputText(Part):
    type: Literal["input_text", "text"]
    text: str


class OutputText(Part):
    """Text of the assistant in an earlier turn."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class Refusal(Part):
    """A refusal of the assistant in place of text."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


_Content = str | Talk[Annotated[InputText | OutputText | Refusal, Field(discriminator="type")]]


class _Item(Part):
    """`id` and `status` tell nothing of an item that stands there whole."""

    id: str | None = None
    status: str | None = None


class MessageItem(_Item):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: _Content
    phase: str | None = None


class CallItem(_Item):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class CallOutputItem(_Item):
    type: Literal["function_call_output"]
    call_id: str
    output: _Content


class ReasoningItem(Part):
    """Reasoning of another model. The gateway ignores it."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    type: Literal["reasoning"]


class ItemReference(Part):
    """An item of an earlier answer."""

    type: Literal["item_reference"] = "item_reference"
    id: str


_KINDS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")


def _kind(item: Any) -> str | None:
    """A tag that is no name of a field, which errors would take it for."""
    if not isinstance(item, dict):
        return None
    kind = item.get("type") or ("item_reference" if "role" not in item else "message")
    return f"<{kind}>" if kind in _KINDS else None


Item = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[CallItem, Tag("<function_call>")]
    | Annotated[CallOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[ItemReference, Tag("<item_reference>")],
    Discriminator(
        _kind,
        custom_error_type="item_kind",
        custom_error_message=f"it should be an object of the type {', '.join(_KINDS)}",
    ),
]


def messages_of(items: Sequence[Item]) -> list[Message]:
    """The messages of a chat; calls belong to the assistant's message before them.

    References must have been replaced by what they refer to.
    """
    messages: list[Message] = []
    calls: list[ToolCall] = []
    """Calls of the last message, which is the assistant's."""

    def say(message: Message) -> None:
        if calls:
            messages[-1] = messages[-1].model_copy(update={"tool_calls": list(calls)})
            calls.clear()
        messages.append(message)

    for item in items:
        if isinstance(item, MessageItem):
            say(Message(role=item.role, content=text_of(item.content)))
        elif isinstance(item, CallOutputItem):
            said = text_of(item.output)
            say(Message(role="tool", content=said, tool_call_id=item.call_id))
        elif isinstance(item, CallItem):
            if not messages or messages[-1].role != "assistant":
                say(Message(role="assistant", content=""))
            function = FunctionCall(name=item.name, arguments=item.arguments)
            calls.append(ToolCall(id=item.call_id, function=function))
    if calls:
        messages[-1] = messages[-1].model_copy(update={"tool_calls": calls})
    return messages


_MOST_BYTES = 16 << 20
MOST_REFERRED_BYTES = 1 << 20
"""Bytes, as JSON, of the items that one request refers to: as many as a body may have."""

_ITEM: TypeAdapter[Any] = TypeAdapter(Item)


class ItemMemory:
    """Forgets the oldest items once all together take more than 16 MiB, as JSON.

    Log-probabilities are left out, because nothing reads them later.
    """

    def __init__(self) -> None:
        self._items: OrderedDict[str, str] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()  # answers are made in several threads

    def keep(self, items: Sequence[dict[str, Any]]) -> None:
        with self._lock:
            for item in items:
                written = as_json(_without_log_probs(item))
                self._items[item["id"]] = written
                self._bytes += len(written)
            while self._bytes > _MOST_BYTES:
                _, forgotten = self._items.popitem(last=False)
                self._bytes -= len(forgotten)

    def resolved(self, items: Sequence[Item]) -> list[Item]:
        """The items, and in place of references what they refer to. Raises `ApiError`."""
        left = MOST_REFERRED_BYTES
        found: list[Item] = []
        for place, item in enumerate(items):
            if isinstance(item, ItemReference):
                written = self._found(place, item)
                left -= len(written)
                if left < 0:
                    raise refused(
                        "input",
                        "input refers to items that hold more than "
                        f"{MOST_REFERRED_BYTES} bytes; refer to fewer of them",
                    )
                item = _ITEM.validate_json(written)
            found.append(item)
        return found

    def _found(self, place: int, reference: ItemReference) -> str:
        written = self._items.get(reference.id)
        if written is None:
            field = f"input.{place}.id"
            raise refused(
                field,
                f"{field} names {as_json(reference.id)}, of which this gateway knows nothing; send "
                "the item itself (clients do with store: false)",
            )
        return written


def _without_log_probs(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] != "message":
        return item
    return item | {"content": [part | {"logprobs": []} for part in item["content"]]}

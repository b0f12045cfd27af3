"""The body of a request, the chat that it stands for, and the errors of that chat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Request
from pydantic import Field, JsonValue, model_validator

from card_client import CardError
from card_gateway.body import ChatBody
from card_gateway.errors import ApiError, from_triton, refused
from card_gateway.limits import (
    MOST_ALTERNATIVES,
    MOST_FIELDS,
    MOST_TOOLS,
    NOT_OFFERED,
    AtMost,
    Few,
    Talk,
    Tools,
)
from card_gateway.messages import Message, Part
from card_gateway.responses.items import Item, ItemMemory, messages_of
from card_gateway.sampling import SamplingBody
from card_gateway.tools.definitions import (
    AllowedChoice,
    AllowedTools,
    Function,
    FunctionName,
    Mode,
    NamedTool,
    Parameters,
    Tool,
    ToolChoice,
)

LOG_PROBABILITIES = "message.output_text.logprobs"
"""The name of log-probabilities in `include`."""


class FunctionTool(Part):
    """A function of the client; OpenAI's other tools run on its own servers."""

    type: Literal["function"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None

    def of_chat(self) -> Tool:
        fields = self.model_dump(exclude={"type"})
        return Tool(type="function", function=Function(**fields))


class NamedFunction(FunctionName):
    type: Literal["function"]

    def of_chat(self) -> NamedTool:
        return NamedTool(type="function", function=FunctionName(name=self.name))


class AllowedFunctions(Part):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1), AtMost(MOST_TOOLS)]

    def of_chat(self) -> AllowedChoice:
        tools = [tool.of_chat() for tool in self.tools]
        allowed = AllowedTools(mode=self.mode, tools=tools)
        return AllowedChoice(type="allowed_tools", allowed_tools=allowed)


class TextFormat(Part):
    """`schema_` and what follows belong to `json_schema`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, JsonValue] | None = Field(None, alias="schema")
    strict: bool | None = None

    def of_chat(self) -> dict[str, Any]:
        if self.type != "json_schema":
            return {"type": self.type}
        fields = self.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
        return {"type": self.type, "json_schema": fields}


class Text(Part):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Part):
    effort: str | None = None
    # Accepted, without effect: no model here reasons apart from its answer.
    summary: str | None = None
    generate_summary: str | None = None


class ResponseBody(SamplingBody):
    """`POST /v1/responses`."""

    not_offered: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **NOT_OFFERED,
        "n": (1,),
        "background": (False,),
        "conversation": (),
        "max_tool_calls": (),
        "previous_response_id": (),
        "prompt": (),
        "truncation": ("disabled",),
    }

    input: str | Talk[Item]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    tools: Tools[FunctionTool] | None = None
    tool_choice: Mode | NamedFunction | AllowedFunctions | None = None
    parallel_tool_calls: bool | None = None
    text: Text | None = None
    reasoning: Reasoning | None = None
    include: Few[list[str]] | None = None
    """Further parts of the answer; but for log-probabilities they belong to what is not offered."""
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_ALTERNATIVES)] | None = None
    chat_template_kwargs: Annotated[dict[str, JsonValue], AtMost(MOST_FIELDS)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ResponseBody:
        if self.top_logprobs and not self.wants_log_probs:
            raise refused(
                "top_logprobs",
                f"top_logprobs is only allowed when include holds {LOG_PROBABILITIES}",
            )
        if self.wants_log_probs and self.tools:
            raise refused(
                "include", f"include has {LOG_PROBABILITIES}, which no answer has beside tools"
            )
        if self.return_trace:
            raise refused("return_trace", "return_trace is for the other routes")
        return self

    @property
    def wants_log_probs(self) -> bool:
        return LOG_PROBABILITIES in (self.include or ())

    @property
    def alternatives(self) -> int:
        return self.top_logprobs or 0

    def chat(self, memory: ItemMemory) -> ChatBody:
        """The chat that this request stands for. Raises `ApiError`."""
        shared = {name: getattr(self, name) for name in SamplingBody.model_fields}
        chat = {
            **shared,
            "messages": self._messages(memory),
            "max_completion_tokens": self.max_output_tokens,
            "tools": [tool.of_chat() for tool in self.tools or ()],
            "tool_choice": self._tool_choice(),
            "parallel_tool_calls": self.parallel_tool_calls,
            "chat_template_kwargs": self.chat_template_kwargs,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "logprobs": self.wants_log_probs,
            "top_logprobs": self.top_logprobs,
        }
        if self.text is not None and self.text.format is not None:
            chat["response_format"] = self.text.format.of_chat()
        return ChatBody.model_validate({name: it for name, it in chat.items() if it is not None})

    def _messages(self, memory: ItemMemory) -> list[Message]:
        if isinstance(self.input, str):
            messages = [Message(role="user", content=self.input)]
        else:
            messages = messages_of(memory.resolved(self.input))
        if not messages:
            raise refused("input", "input holds no message; send at least one")
        if self.instructions:
            return [Message(role="system", content=self.instructions), *messages]
        return messages

    def _tool_choice(self) -> ToolChoice | None:
        choice = self.tool_choice
        return choice if choice is None or isinstance(choice, str) else choice.of_chat()


_NAMES = {
    "logprobs": "include",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text.format",
}


@contextmanager
def fields_renamed(request: Request) -> Iterator[None]:
    """Raises an `ApiError` in place of one that names a field of chats, or of a `CardError`."""
    try:
        yield
    except CardError as error:
        guided_by = getattr(request.state, "guided_by", None)
        raise _renamed(from_triton(error, guided_by)) from error
    except ApiError as error:
        raise _renamed(error) from error


def _renamed(error: ApiError) -> ApiError:
    field, dot, inside = (error.param or "").partition(".")
    if field not in _NAMES:
        return error
    # Places of messages are not those of items: instructions come first, calls are joined.
    param = _NAMES[field] + (f"{dot}{inside}" if field != "messages" else "")
    message = error.message.replace(f"{field}{dot}{inside}", param, 1)
    return ApiError(error.status_code, message, param=param, code=error.code)

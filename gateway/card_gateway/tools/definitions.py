"""The tools of a request, and which of them the model may or must call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue

from card_gateway.errors import as_json, refused
from card_gateway.limits import MOST_TOOLS, AtMost
from card_gateway.messages import Part

_Name = Annotated[str, Field(min_length=1)]


def _of_an_object(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise ValueError('its type should be "object"')
    return schema


Parameters = Annotated[dict[str, JsonValue], AfterValidator(_of_an_object)]
"""A JSON schema of a function's arguments."""


class Function(Part):
    """parameters  absent: there are none"""

    name: _Name
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class Tool(Part):
    """A function of the client; OpenAI's other tools run on its own servers."""

    type: Literal["function"]
    function: Function

    def plain(self) -> dict[str, Any]:
        """The tool in the form of chat templates."""
        function: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        nothing: dict[str, Any] = {"type": "object", "properties": {}}
        function["parameters"] = self.function.parameters or nothing
        return {"type": self.type, "function": function}


class FunctionName(Part):
    name: _Name


class NamedTool(Part):
    """One function that must be called, or may be."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(Part):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1), AtMost(MOST_TOOLS)]


class AllowedChoice(Part):
    """Some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


Mode = Literal["none", "auto", "required"]
ToolChoice = Mode | NamedTool | AllowedChoice


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request, and whether the model must call them.

    tools     tools that the prompt lists; none: the answer always counts as text
    callable  tools that the grammar allows, if a call is required
    required  the answer consists of calls
    parallel  the answer may hold several calls
    """

    tools: tuple[Tool, ...] = ()
    callable: tuple[Tool, ...] = ()
    required: bool = False
    parallel: bool = True

    @property
    def is_strict(self) -> bool:
        """Whether any call must fit the schema of its function."""
        return any(tool.function.strict for tool in self.callable)


def tool_use(
    tools: Sequence[Tool] | None, choice: ToolChoice | None, parallel: bool | None
) -> ToolUse:
    """The tools that the model may or must call, from a request's fields. Raises `ApiError`."""
    every = tuple(tools or ())
    several = parallel is not False
    if choice is None or choice == "auto":
        return ToolUse(every, every, parallel=several)
    if choice == "none":
        return ToolUse()
    if not every:
        raise refused("tool_choice", "tool_choice is only allowed when tools are given")
    if choice == "required":
        return ToolUse(every, every, required=True, parallel=several)
    if isinstance(choice, NamedTool):
        return ToolUse(every, _named([choice], every), required=True, parallel=False)
    allowed = choice.allowed_tools
    some = _named(allowed.tools, every)
    return ToolUse(some, some, required=allowed.mode == "required", parallel=several)


def _named(wanted: Sequence[NamedTool], tools: Sequence[Tool]) -> tuple[Tool, ...]:
    by_name = {tool.function.name: tool for tool in tools}
    names = [one.function.name for one in wanted]
    for name in names:
        if name not in by_name:
            allowed = ", ".join(map(as_json, by_name))
            raise refused(
                "tool_choice", f"tool_choice names {as_json(name)}; the tools are {allowed}"
            )
    return tuple(by_name[name] for name in dict.fromkeys(names))

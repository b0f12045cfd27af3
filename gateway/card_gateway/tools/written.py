"""Tools and calls written down: as plain text, for a chat template that does not know them; as the
grammar of a text in which a function must be called; and what the server says of that grammar.

The words of the text are those on which models that call functions in the Hermes form were trained:
the system message lists the functions between `<tools>` tags, an assistant's calls stand between
`<tool_call>` tags, and a user's message has the results between `<tool_response>` tags. The grammar
is in the Lark dialect of `llguidance`, where `%json` stands for every text that fits a JSON schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from card_client import CardError
from card_gateway.errors import ApiError, as_json, refused
from card_gateway.structured import Guide, compact_json
from card_gateway.tools.definitions import Function, ToolUse

CALL, END_OF_CALL = "<tool_call>", "</tool_call>"

_LIST = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{functions}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""

Message = Mapping[str, Any]


def written_out(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, str]]:
    """The same conversation in messages of the roles system, user and assistant."""
    written: list[dict[str, str]] = []
    for is_answer, group in groupby(messages, key=lambda message: message["role"] == "tool"):
        if is_answer:
            answers = (f"<tool_response>\n{one['content']}\n</tool_response>" for one in group)
            written.append({"role": "user", "content": "\n".join(answers)})
            continue
        for message in group:
            calls = map(_call, message.get("tool_calls", ()))
            text = "\n".join(part for part in (message["content"], *calls) if part)
            written.append({"role": message["role"], "content": text})
    return _told(written, tools) if tools else written


def _told(
    messages: list[dict[str, str]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    listed = _LIST.format(functions="\n".join(map(as_json, tools)))
    if messages and messages[0]["role"] == "system":
        system = f"{messages[0]['content']}\n\n{listed}"
        return [{"role": "system", "content": system}, *messages[1:]]
    return [{"role": "system", "content": listed}, *messages]


def _call(call: Mapping[str, Any]) -> str:
    return f"{CALL}\n{as_json(call['function'])}\n{END_OF_CALL}"


_RULE = re.compile(r"call_(\d+):")
_STRICT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One way to write an object, the one that models know best: spaces are no place to get lost in."""
_LENIENT = {**_STRICT, "lenient": True}
"""Keywords that cannot be held to are left out, as of a schema that only describes."""


def grammar_of(use: ToolUse) -> str | None:
    """The grammar of a text with these tools. None: the text is free."""
    if use.required:
        return f"start: calls\n{_calls(use)}"
    if use.is_strict:
        return _text_with_calls(use)
    return None


def calls_or_json_grammar(use: ToolUse, schema: str) -> str:
    """Calls, each of a function that `use` allows, or an answer that fits the JSON schema."""
    return f"start: calls | answer\nanswer: %json {schema}\n{_calls(use)}"


def function_at(grammar: str, use: ToolUse, line: int) -> Function | None:
    """The function with its arguments in line `line` (from 1) of a grammar of these tools."""
    lines = grammar.splitlines()
    found = _RULE.match(lines[line - 1]) if 0 < line <= len(lines) else None
    return None if found is None else use.callable[int(found[1])].function


def _calls(use: ToolUse) -> str:
    """One call, or several where `use` allows that."""
    several = ' ("\\n" call)*' if use.parallel else ""
    return f"calls: call{several}\n{_call_rules(use, json.dumps(CALL))}"


def _text_with_calls(use: ToolUse) -> str:
    """Any text with calls anywhere, or with one at its end: what opens a call is always one,
    because the shortest text that ends with it is taken."""
    start = "call* TEXT" if use.parallel else "call | TEXT"
    text = f"TEXT: /(?s:.*)/\nopened[lazy]: TEXT {json.dumps(CALL)}"
    return f"start: {start}\n{text}\n{_call_rules(use, 'opened')}"


def _call_rules(use: ToolUse, opening: str) -> str:
    functions = [tool.function for tool in use.callable]
    rules = [f"call_{place}: {_rule(function)}" for place, function in enumerate(functions)]
    names = " | ".join(f"call_{place}" for place in range(len(functions)))
    closing = json.dumps(f"\n{END_OF_CALL}")
    return "\n".join([f'call: {opening} "\\n" ({names}) {closing}', *rules, ""])


def _rule(function: Function) -> str:
    """A call's JSON. Arguments are an object, held to all of the schema of a strict function."""
    name = as_json(function.name)
    opening = as_json(f'{{"name": {name}, "arguments": ')
    parameters: dict[str, Any] = (
        {"properties": {}} if function.parameters is None else function.parameters
    )
    options = _STRICT if function.strict else _LENIENT
    schema = {**parameters, "type": "object", "x-guidance": options}
    return f'{opening} %json {compact_json(schema)} "}}"'


_GUIDE = "guided_decoding_guide"
_PLACE = re.compile(r"line (\d+) column \d+: (?:failed to compile JSON schema: )?(.*)", re.DOTALL)


@contextmanager
def tools_named(use: ToolUse, guide: Guide | None) -> Iterator[None]:
    """Raises an `ApiError` for a `CardError` that names the guide, which was made of tools."""
    try:
        yield
    except CardError as error:
        if guide is None or not error.message.startswith(_GUIDE):
            raise
        if error.message.startswith(f"{_GUIDE}_type"):
            field, what = "tools", "a strict tool"
            if use.required:
                field, what = "tool_choice", "a tool_choice that requires a call"
            raise refused(field, error.message.replace(f"{_GUIDE}_type", what)) from error
        raise _refused(error.message, use, guide) from error


def _refused(said: str, use: ToolUse, guide: Guide) -> ApiError:
    place = _PLACE.search(said)
    function = None if place is None else function_at(guide.text, use, int(place[1]))
    if place is not None and function is not None:
        what = f"the parameters of the tool {as_json(function.name)}"
        return refused("tools", f"{what} cannot be compiled: {place[2]}")
    if place is not None and guide.field != "tools":
        return refused(guide.field, f"{guide.field} cannot be compiled as json_schema: {place[2]}")
    return refused("tools", said.replace(_GUIDE, "the grammar that tools make"))

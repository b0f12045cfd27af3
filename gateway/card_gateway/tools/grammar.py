"""What a text must look like in which a function must be called, or is called strictly.

The grammar is written in the Lark dialect of `llguidance`, where `%json` stands for every text that
fits a JSON schema.
"""

from __future__ import annotations

import json
import re
from typing import Any

from card_gateway.structured import closed
from card_gateway.tools.definitions import Function, ToolUse
from card_gateway.tools.written import CALL, END_OF_CALL

_RULE = re.compile(r"call_(\d+):")
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One way to write an object, the one that models know best: spaces are no place to get lost in."""
_STRICT = {**_SPACING, "coerce_one_of": True}
"""`oneOf` is taken as `anyOf`: a text that fits two of the schemas is rare."""
_LENIENT = {**_STRICT, "lenient": True}
"""Keywords and formats that cannot be held to are left out, as of a schema that only describes."""

# As the server holds a text to a schema that stands alone.
JSON_OPTIONS = {
    "whitespace_pattern": r"[\x20\x09]{1,2}|\x0D?\x0A[\x20\x09]{0,40}",
    "coerce_one_of": True,
}
FORMATS = frozenset(
    ("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
NOT_SCHEMAS = frozenset(("const", "enum", "default", "examples", "x-guidance"))


def grammar_of(use: ToolUse) -> str | None:
    """What `use` alone makes of a text; None: it may be anything."""
    if use.required:
        return f"start: calls\n{_calls(use)}"
    if use.is_strict:
        return _text_with_calls(use)
    return None


def calls_or_json_grammar(use: ToolUse, schema: str) -> str:
    """Calls, each of a function that `use` allows, or an answer that fits the JSON schema."""
    return f"start: calls | answer\nanswer: %json {_as_alone(schema)}\n{_calls(use)}"


def function_at(grammar: str, use: ToolUse, line: int) -> Function | None:
    """Whose arguments stand in that line, from 1, of a grammar of these tools."""
    lines = grammar.splitlines()
    found = _RULE.match(lines[line - 1]) if 0 < line <= len(lines) else None
    return None if found is None else use.callable[int(found[1])].function


def _as_alone(schema: str) -> str:
    """The schema with what the server adds to one that stands alone."""
    try:
        read = json.loads(schema)
    except ValueError:
        return schema
    if not isinstance(read, dict):
        return schema
    options = {**JSON_OPTIONS, **read.get("x-guidance", {})}
    if options.get("whitespace_flexible") is False:
        del options["whitespace_pattern"]
    return json.dumps({**_held_to(read), "x-guidance": options})


def _held_to(schema: Any) -> Any:
    """The schema without formats that nobody knows."""
    if isinstance(schema, list):
        return [_held_to(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value if name in NOT_SCHEMAS else _held_to(value)
        for name, value in schema.items()
        if name != "format" or not isinstance(value, str) or value in FORMATS
    }


def _calls(use: ToolUse) -> str:
    """One call, or several where `use` allows that."""
    several = ' ("\\n" call)*' if use.parallel else ""
    return f"calls: call{several}\n{_call(use, json.dumps(CALL))}"


def _text_with_calls(use: ToolUse) -> str:
    """Any text with calls anywhere, or with one at its end: what opens a call is always one,
    because the shortest text that ends with it is taken."""
    start = "call* TEXT" if use.parallel else "call | TEXT"
    text = f"TEXT: /(?s:.*)/\nopened[lazy]: TEXT {json.dumps(CALL)}"
    return f"start: {start}\n{text}\n{_call(use, 'opened')}"


def _call(use: ToolUse, opening: str) -> str:
    functions = [tool.function for tool in use.callable]
    rules = [f"call_{place}: {_rule(function)}" for place, function in enumerate(functions)]
    names = " | ".join(f"call_{place}" for place in range(len(functions)))
    closing = json.dumps(f"\n{END_OF_CALL}")
    return "\n".join([f'call: {opening} "\\n" ({names}) {closing}', *rules, ""])


def _rule(function: Function) -> str:
    name = json.dumps(function.name, ensure_ascii=False)
    opening = json.dumps(f'{{"name": {name}, "arguments": ', ensure_ascii=False)
    return f'{opening} %json {json.dumps(arguments_schema(function))} "}}"'


def arguments_schema(function: Function) -> dict[str, Any]:
    """The schema that the arguments are held to: an object of the properties that are named.

    A strict function is held to all of its schema, or cannot be compiled.
    """
    schema: dict[str, Any] = dict(
        _NO_ARGUMENTS if function.parameters is None else function.parameters
    )
    schema["type"] = "object"
    return closed(schema) | {"x-guidance": _STRICT if function.strict else _LENIENT}

"""What a text must look like in which a function must be called, or is called strictly.

The grammar is written in the Lark dialect of `llguidance`, where `%json` stands for every text that
fits a JSON schema.
"""

from __future__ import annotations

import json
import re
from typing import Any

from card_gateway.structured import compact_json
from card_gateway.tools.definitions import Function, ToolUse
from card_gateway.tools.written import CALL, END_OF_CALL

_RULE = re.compile(r"call_(\d+):")
_STRICT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One way to write an object, the one that models know best: spaces are no place to get lost in."""
_LENIENT = {**_STRICT, "lenient": True}
"""Keywords that cannot be held to are left out, as of a schema that only describes."""


def grammar_of(use: ToolUse) -> str | None:
    """What `use` alone makes of a text; None: it may be anything."""
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
    """A call's JSON. Arguments are an object, held to all of the schema of a strict function."""
    name = json.dumps(function.name, ensure_ascii=False)
    opening = json.dumps(f'{{"name": {name}, "arguments": ', ensure_ascii=False)
    parameters: dict[str, Any] = (
        {"properties": {}} if function.parameters is None else function.parameters
    )
    options = _STRICT if function.strict else _LENIENT
    schema = {**parameters, "type": "object", "x-guidance": options}
    return f'{opening} %json {compact_json(schema)} "}}"'

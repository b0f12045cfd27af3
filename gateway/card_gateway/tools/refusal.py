"""What the server says of a grammar, in words of the tools that it was made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from card_client import CardError
from card_gateway.errors import as_json, refused
from card_gateway.tools.definitions import ToolUse
from card_gateway.tools.grammar import function_at, grammar_of

_GUIDE = "guided_decoding_guide"
_PLACE = re.compile(r"line (\d+) column \d+: (?:failed to compile JSON schema: )?(.*)", re.DOTALL)


@contextmanager
def tools_named(use: ToolUse) -> Iterator[None]:
    """Raises an `ApiError` for a `CardError` that names the grammar."""
    try:
        yield
    except CardError as error:
        if grammar_of(use) is None or not error.message.startswith(_GUIDE):
            raise
        if error.message.startswith(f"{_GUIDE}_type"):
            field, what = "tools", "a strict tool"
            if use.required:
                field, what = "tool_choice", "a tool_choice that requires a call"
            raise refused(field, error.message.replace(f"{_GUIDE}_type", what)) from error
        raise refused("tools", _message(error.message, use)) from error


def _message(said: str, use: ToolUse) -> str:
    place = _PLACE.search(said)
    function = None if place is None else function_at(use, int(place[1]))
    if place is None or function is None:
        return said.replace(_GUIDE, "the grammar that tools make")
    return f"the parameters of the tool {as_json(function.name)} cannot be compiled: {place[2]}"

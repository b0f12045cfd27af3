"""What the server says of a grammar, in words of the tools that it was made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from card_client import CardError
from card_gateway.errors import ApiError, as_json, refused
from card_gateway.structured import Guide
from card_gateway.tools.definitions import ToolUse
from card_gateway.tools.grammar import function_at

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

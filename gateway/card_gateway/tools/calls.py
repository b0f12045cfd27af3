"""Calls found in a text while it arrives, in the Hermes form.

    <tool_call>
    {"name": "weather", "arguments": {"city": "Rome"}}
    </tool_call>

A call is known once its name is, and its arguments leave as they arrive, letter by letter as the
model wrote them. What looks like a call and is none stays text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import from_json

from card_gateway.errors import as_json
from card_gateway.tools.written import CALL, END_OF_CALL

_ARGUMENTS = ("arguments", "parameters")
_HEAD = re.compile(
    r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
"""The beginning of a call as it is usually written, up to its arguments."""

_DECODER = json.JSONDecoder()
_LONGEST_HEAD = 1 << 14
"""Letters of a call without a known name: with each piece of text all of them are read."""


@dataclass(frozen=True)
class Call:
    """One call, or the next part of it.

    index      place among the answer's calls
    id, name   "" in later parts
    arguments  JSON, or a part of it
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


Part = str | Call


def whole_calls(parts: Iterable[Part]) -> tuple[str, list[Call]]:
    """All text outside calls, and every call with all of its arguments."""
    text, calls = "", dict[int, Call]()
    for part in parts:
        if isinstance(part, str):
            text += part
        elif part.index in calls:
            before = calls[part.index]
            calls[part.index] = replace(before, arguments=before.arguments + part.arguments)
        else:
            calls[part.index] = part
    return text, list(calls.values())


class CallParser:
    """Reads one answer. The same text gives the same calls, however it is cut.

    count  calls found so far
    """

    def __init__(self) -> None:
        self._pending = ""
        self.count = 0
        self._owed = ""
        """Text that begins like a call and may still prove to be none."""
        self._scan = ObjectScan()
        self._read: Callable[[list[Part]], bool] = self._outside

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain now."""
        self._pending += text
        parts: list[Part] = []
        while self._read(parts):
            pass
        return parts

    def feed_one_call(self, text: str) -> tuple[list[Part], str | None]:
        """The parts that are certain now, and what stands behind the first call; None: there is no
        whole call yet."""
        self._pending += text
        parts: list[Part] = []
        while self._read != self._behind:
            if not self._read(parts):
                return parts, None
        return parts, self._pending

    def finish(self) -> list[Part]:
        """The rest, once the answer is complete."""
        rest = ""
        if self._read == self._head:
            rest = self._owed + self._pending
        elif self._read == self._outside:
            rest = self._pending.rstrip() if self.count else self._pending
        self._pending = ""
        return [rest] if rest else []

    # Each reads on from one place of the grammar. False: it needs more text.

    def _outside(self, parts: list[Part]) -> bool:
        before, tag, behind = self._pending.partition(CALL)
        if not tag:
            before = before[: len(before) - _begun(before, CALL)]
        text = before.rstrip()
        if text:
            parts.append(text)
        if not tag:
            self._pending = self._pending[len(text) :]
            return False
        self._owed = before[len(text) :] + CALL
        self._pending = behind
        self._read = self._head
        return True

    def _head(self, parts: list[Part]) -> bool:
        # Some models write several calls as a list.
        body = self._pending.lstrip(" \t\r\n[")
        if not body:
            return False
        if head := _HEAD.match(body):
            if (name := _text(head[1])) is None:
                return self._no_call(parts)
            parts.append(self._begin(name))
            self._pending = body[head.end() :]
            self._scan = ObjectScan()
            self._read = self._arguments
            return True
        try:
            value, end = _DECODER.raw_decode(body)
            call = _call_of(value)
        except RecursionError:
            return self._no_call(parts)
        except ValueError:
            may_be = len(body) <= _LONGEST_HEAD and _may_become_an_object(body)
            return False if may_be else self._no_call(parts)
        if call is None:
            return self._no_call(parts)
        parts.append(self._begin(*call))
        self._pending = body[end:]
        self._read = self._behind
        return True

    def _arguments(self, parts: list[Part]) -> bool:
        end = self._scan.end(self._pending)
        written = self._pending[:end]
        if written:
            parts.append(Call(self.count - 1, arguments=written))
        self._pending = self._pending[len(written) :]
        if end is None:
            return False
        self._read = self._behind
        return True

    def _behind(self, parts: list[Part]) -> bool:
        self._pending = self._pending.lstrip(" \t\r\n}]")
        rest = self._pending
        if rest.startswith(","):
            further = rest[1:].lstrip()
            if not further:
                return False
            if further.startswith("{"):
                self._pending, self._owed = further, ""
                self._read = self._head
                return True
            if further.startswith('"'):  # a field behind the arguments tells nothing
                _, brace, self._pending = further.partition("}")
                if not brace:
                    self._pending = rest
                return bool(brace)
        if len(rest) < len(END_OF_CALL) and END_OF_CALL.startswith(rest):
            return False
        # Where the closing tag was forgotten, the call ends with its object.
        self._pending = rest.removeprefix(END_OF_CALL)
        self._read = self._outside
        return True

    def _begin(self, name: str, arguments: str = "") -> Call:
        self.count += 1
        return Call(self.count - 1, f"call_{secrets.token_hex(12)}", name, arguments)

    def _no_call(self, parts: list[Part]) -> bool:
        if self._owed:
            parts.append(self._owed)
        self._owed = ""
        self._read = self._outside
        return True


class ObjectScan:
    """Finds where a JSON object ends that arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._has_begun = False
        self._in_text = False
        self._escaped = False

    @property
    def has_ended(self) -> bool:
        """Whether all of the object was read."""
        return self._has_begun and self._depth <= 0

    def end(self, piece: str) -> int | None:
        """Where in the next piece the object ends; None: behind it.

        Outside of texts JSON has no `<`: there a closing tag cuts off an object that is not whole.
        """
        for place, letter in enumerate(piece):
            if self._in_text:
                if self._escaped:
                    self._escaped = False
                elif letter == "\\":
                    self._escaped = True
                elif letter == '"':
                    self._in_text = False
            elif letter == '"':
                self._in_text = True
            elif letter in "{[":
                self._depth += 1
                self._has_begun = True
            elif letter in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return place + 1
            elif letter == "<":
                return place
        return None


def _begun(text: str, tag: str) -> int:
    """How many letters at the end of `text` are the beginning of `tag`."""
    most = min(len(text), len(tag) - 1)
    return next((count for count in range(most, 0, -1) if text.endswith(tag[:count])), 0)


def _text(literal: str) -> str | None:
    """The text that JSON writes like that; None: it is no Unicode text."""
    try:
        text = str(json.loads(literal))
        text.encode()
    except ValueError:
        return None
    return text


def _may_become_an_object(body: str) -> bool:
    try:
        return isinstance(from_json(body, allow_partial="trailing-strings"), dict)
    except ValueError:
        return False


def _call_of(value: Any) -> tuple[str, str] | None:
    """Name and arguments of a call in whatever order they were written; None: it is none."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    name = _text(as_json(value["name"]))
    arguments: Any = next((value[key] for key in _ARGUMENTS if key in value), {})
    # Some models write the object as a text once more.
    written = arguments or "{}" if isinstance(arguments, str) else as_json(arguments)
    if not name or not written.startswith("{") or _text(as_json(written)) is None:
        return None
    return name, written

"""From a guide to a grammar that llguidance compiles, or to what is wrong with it, and where."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, grammar_from

from card.constraints.guide import Guide, GuideError

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_JSON_OPTIONS: JsonCompileOptions = {
    # Small models lose themselves in white space. As JSON is mostly written: a space, or a new line
    # and its indentation, ten levels of four spaces.
    "whitespace_pattern": r"[\x20\x09]{1,2}|\x0D?\x0A[\x20\x09]{0,40}",
    # Taken as anyOf: a text that fits two of the schemas is rare, and pydantic writes oneOf.
    "coerce_one_of": True,
}
"""Defaults that a schema may change by its `x-guidance`."""

_FORMATS = frozenset(
    ("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
"""That are held to. JSON Schema has any other say something about a text, not limit it."""

_NOT_SCHEMAS = frozenset(("const", "enum", "default", "examples", "x-guidance"))
"""Keywords whose values are JSON of the client's, however much they look like schemas."""

_MANY = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
_LISTS = ("prefixItems", "items", "anyOf", "oneOf", "allOf")
_SINGLE = ("items", "additionalProperties", "additionalItems", "not", "contains", "propertyNames")
_MOST_TRIED = 400
"""Parts of a wrong schema that are looked at to find the one that is wrong."""

_LONGEST_MESSAGE = 300


def grammar_of(guide: Guide) -> str:
    """As llguidance wants it. Raises `GuideError` for what shows before anything is compiled."""
    if guide.kind == "json":
        return _json_grammar({"type": ["object", "array"]})
    if guide.kind == "json_schema":
        return _json_grammar(_schema_of(guide.text))
    if guide.kind == "regex":
        return str(LLMatcher.grammar_from_regex(guide.text))
    if guide.kind == "choice":
        choices = " | ".join(json.dumps(choice) for choice in _choices_of(guide.text))
        return str(LLMatcher.grammar_from_lark(f"start: {choices}"))
    try:
        return str(grammar_from("ebnf", guide.text))
    except ValueError as error:
        raise GuideError(_in_one_line(str(error))) from None


def explained(guide: Guide, message: str) -> GuideError:
    """What llguidance said of a guide that it cannot compile, with the place in the guide."""
    if guide.kind == "json_schema":
        pointer = _culprit(_schema_of(guide.text), message)
        return GuideError(f"at #{pointer}: {_in_one_line(message)}")
    return GuideError(_in_one_line(message))


def _json_grammar(schema: dict[str, Any]) -> str:
    text = json.dumps(_without_annotations(schema))
    options = _JSON_OPTIONS.copy()
    wanted = schema.get("x-guidance")
    if isinstance(wanted, dict) and wanted.get("whitespace_flexible") is False:
        options.pop("whitespace_pattern")  # which would let spaces in again
    return str(LLMatcher.grammar_from_json_schema(text, defaults=options))


def _schema_of(text: str) -> dict[str, Any]:
    schema = _json_of(text)
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise GuideError("at #: the schema must be an object")
    return schema


def _choices_of(text: str) -> list[str]:
    choices = _json_of(text)
    if not isinstance(choices, list) or not choices:
        raise GuideError('choices must be a JSON list of one or more texts, as ["yes", "no"]')
    for place, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice:
            raise GuideError(f"choice {place} must be a text of at least one character")
    return choices


def _json_of(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise GuideError(
            f"it is not valid JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from None
    except RecursionError:
        raise GuideError("it is nested too deeply") from None


def _without_annotations(schema: Any) -> Any:
    """The schema without formats that llguidance does not know and would refuse."""
    if isinstance(schema, list):
        return [_without_annotations(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value if name in _NOT_SCHEMAS else _without_annotations(value)
        for name, value in schema.items()
        if name != "format" or not isinstance(value, str) or value in _FORMATS
    }


# --- where it is wrong -------------------------------------------------------------------------


def _culprit(schema: dict[str, Any], message: str) -> str:
    """JSON pointer of the innermost part of which llguidance says the same as of the whole."""
    pointer, part, tried = "", schema, 0
    shared: dict[str, Any] = {
        name: schema[name] for name in ("$defs", "definitions") if name in schema
    }
    while True:
        for step, child in _parts(part):
            tried += 1
            if tried > _MOST_TRIED:
                return pointer
            if not isinstance(child, dict):
                return pointer + step
            if _problem(child, shared) == message:
                pointer, part = pointer + step, child
                break
        else:
            return pointer


def _problem(part: dict[str, Any], shared: dict[str, Any]) -> str:
    """What llguidance says of a part by itself, which may refer to the `shared` definitions."""
    said: str = LLMatcher.validate_grammar(_json_grammar({**shared, **part}))
    return said


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What should be schemas directly inside a schema, each with its step of a JSON pointer; true
    and false are, and are left out."""
    for keyword in _MANY:
        if isinstance(inside := schema.get(keyword), dict):
            for name, child in inside.items():
                if not isinstance(child, bool):
                    yield f"/{keyword}/{name.replace('~', '~0').replace('/', '~1')}", child
    for keyword in _LISTS:
        if isinstance(inside := schema.get(keyword), list):
            for place, child in enumerate(inside):
                if not isinstance(child, bool):
                    yield f"/{keyword}/{place}", child
    for keyword in _SINGLE:
        if isinstance(inside := schema.get(keyword), dict):
            yield f"/{keyword}", inside


def _in_one_line(message: str) -> str:
    """llguidance's message without the drawing of the place, which it also says in words."""
    place = re.match(r"(?:at )?(\d+)\((\d+)\): ", message)
    drawn = re.search(r"regex parse error:\n    (.*)\n    ( *)\^+\nerror: (.*)", message)
    if drawn:
        return f"{drawn[3]} at character {len(drawn[2]) + 1} of {drawn[1][:80]!r}"
    if place:
        said = re.split(r"\n|; following special tokens", message[place.end() :])[0]
        return f"line {place[1]} column {place[2]}: {said}"[:_LONGEST_MESSAGE]
    return " ".join(message.replace("<non-verbose/>", "").split())[:_LONGEST_MESSAGE]

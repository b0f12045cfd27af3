"""Turns a guide into a grammar for llguidance, and llguidance's errors into places in the guide."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from llguidance import LLMatcher, grammar_from

from card.constraints.guide import Guide, GuideError
from card.constraints.references import endless_reference

_JSON_OPTIONS = {
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
"""Formats that are enforced. By JSON Schema other formats only annotate a text."""

_NOT_SCHEMAS = frozenset(("const", "enum", "default", "examples", "x-guidance"))
"""Keywords with values that are plain JSON, and never schemas."""

_MANY = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
_LISTS = ("prefixItems", "items", "anyOf", "oneOf", "allOf")
_SINGLE = ("items", "additionalProperties", "additionalItems", "not", "contains", "propertyNames")

_COMPOSES = ("if", "dependentSchemas")
_COMPOSES_BESIDE_PROPERTIES = ("$ref", "allOf", "anyOf", "oneOf")
_OF_OTHERS = ("additionalProperties", "patternProperties")

_SCHEMA_IN_LARK = re.compile(
    r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|(?://|\#)[^\n]*|(?P<schema>%json\s*)'
)
"""What follows `schema` is one; texts, regular expressions and comments are passed over."""

_MOST_TRIED = 400
"""Most parts of a wrong schema to test in search of the error."""

_LONGEST_MESSAGE = 300


def grammar_of(guide: Guide) -> str:
    """The grammar of a guide. Raises `GuideError` for errors found before compiling."""
    if guide.kind == "json":
        return _json_grammar({"type": ["object", "array"]})
    if guide.kind == "json_schema":
        schema = _schema_of(guide.text)
        _check_references(schema)
        return _json_grammar(schema)
    if guide.kind == "regex":
        return str(LLMatcher.grammar_from_regex(guide.text))
    if guide.kind == "choice":
        choices = " | ".join(json.dumps(choice) for choice in _choices_of(guide.text))
        return str(LLMatcher.grammar_from_lark(f"start: {choices}"))
    try:
        return str(grammar_from("ebnf", _with_schemas_held_to(guide.text)))
    except ValueError as error:
        raise GuideError(_in_one_line(str(error))) from None


def explained(guide: Guide, message: str) -> GuideError:
    """What llguidance said of a guide that it cannot compile, with the place in the guide."""
    if guide.kind == "json_schema":
        pointer = _culprit(_schema_of(guide.text), message)
        return GuideError(f"at #{pointer}: {_in_one_line(message)}")
    return GuideError(_in_one_line(message))


def _json_grammar(schema: dict[str, Any]) -> str:
    return str(LLMatcher.grammar_from_json_schema(_held_to(schema)))


def _with_schemas_held_to(grammar: str) -> str:
    """A grammar in which a schema, behind `%json`, means what it means alone."""
    found, read = "", 0
    for token in _SCHEMA_IN_LARK.finditer(grammar):
        if token["schema"] is None or token.start() < read:
            continue
        try:
            schema, end = json.JSONDecoder().raw_decode(grammar, token.end())
        except (ValueError, RecursionError):
            break  # llguidance says what is wrong with it
        if isinstance(schema, dict):
            line = grammar.count("\n", 0, token.start()) + 1
            _check_references(schema, f"line {line} column 1: ")
            lines = "\n" * grammar.count("\n", token.end(), end)  # what it says names lines
            found += f"{grammar[read : token.end()]}{{{lines}{_held_to(schema)[1:]}"
            read = end
    return found + grammar[read:]


def _held_to(schema: dict[str, Any]) -> str:
    """The schema that a text is held to."""
    wanted = schema.get("x-guidance")
    options = _JSON_OPTIONS | (wanted if isinstance(wanted, dict) else {})
    if options.get("whitespace_flexible") is False:
        options.pop("whitespace_pattern", None)  # which would let spaces in again
    closed = _without_annotations(_with_objects_closed(schema))
    return json.dumps(closed | {"x-guidance": options})


def _check_references(schema: dict[str, Any], place: str = "") -> None:
    """Raises `GuideError`, which begins with the place of the schema in a grammar."""
    pointer = endless_reference(schema)
    if pointer is not None:
        raise GuideError(
            f"{place}at #{pointer}: its $ref leads back to itself, so no text of it ends; let "
            "it lead to a schema that says what the value is, or let the value be left out"
        )


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


# --- what its objects may hold -----------------------------------------------------------------


def _with_objects_closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with closed objects: they have only the properties that they name, unless they
    mention others. Composed schemas stay open, and so do all schemas that these may refer to,
    because each part must allow the properties of the other parts."""
    parts = list(_objects(schema))
    if any(map(_is_composed, parts)) and any("$ref" in part for part in parts):
        return schema
    return {**_closed(schema)}


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in JSON."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _objects(part)


def _is_composed(schema: dict[str, Any]) -> bool:
    """Whether several schemas together describe an object."""
    every = schema.get("allOf", [])
    several = not isinstance(every, list) or len(every) > 1
    beside = _COMPOSES_BESIDE_PROPERTIES if "properties" in schema else ()
    return several or any(name in schema for name in (*_COMPOSES, *beside))


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict) or _is_composed(schema):
        return schema
    found = dict(schema)
    for name, value in schema.items():
        if name in _MANY and isinstance(value, dict):
            found[name] = {inner: _closed(part) for inner, part in value.items()}
        elif name in _LISTS and isinstance(value, list):
            found[name] = [_closed(part) for part in value]
        elif name in _SINGLE:
            found[name] = _closed(value)
    names = found.get("properties")
    if isinstance(names, dict) and not any(name in found for name in _OF_OTHERS):
        required = found.get("required", [])
        if isinstance(required, list) and set(map(str, required)) <= names.keys():
            found["additionalProperties"] = False
    return found


# --- where it is wrong -------------------------------------------------------------------------


def _culprit(schema: dict[str, Any], message: str) -> str:
    """JSON pointer of the innermost part with the same error as the whole schema."""
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
    """llguidance's error for a part alone, which may refer to the `shared` definitions."""
    said: str = LLMatcher.validate_grammar(_json_grammar({**shared, **part}))
    return said


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The direct subschemas of a schema, each with its step of a JSON pointer; without `true` and
    `false`, which are always valid."""
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

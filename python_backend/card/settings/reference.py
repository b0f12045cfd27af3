"""Values and meaning of every field, from the schema that pydantic makes of the settings."""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml

from card.settings.models import REPOSITORY_ROOT
from card.settings.whole import ENVIRONMENT_PREFIX, Settings

Place = tuple[str, ...]
"""Names of sections and a field, from the outside in."""

_BOUNDS = {"minimum": "from", "exclusiveMinimum": "above"}
_BOUNDS |= {"maximum": "to", "exclusiveMaximum": "below"}


@functools.cache
def fields() -> dict[Place, dict[str, Any]]:
    """The schema of every section and field by its place, each section before its fields."""
    schema = Settings.model_json_schema()

    def below(place: Place, section: dict[str, Any]) -> Iterator[tuple[Place, dict[str, Any]]]:
        for name, field in section.get("properties", {}).items():
            model = schema["$defs"][field["$ref"].rpartition("/")[2]] if "$ref" in field else {}
            yield (*place, name), model | field
            yield from below((*place, name), model)

    return {(): schema} | dict(below((), schema))


def variable_of(place: Place) -> str:
    """The environment variable that sets a field or, as JSON, a section."""
    return ENVIRONMENT_PREFIX + "__".join(place).upper()


def allowed(schema: dict[str, Any]) -> str:
    """The values that a field takes: `integer from 1 to 256`."""
    if "properties" in schema:
        return f"a mapping with {', '.join(schema['properties'])}"
    if "anyOf" in schema:
        return " or ".join(map(allowed, schema["anyOf"]))
    if words := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return ", ".join(map(str, words))
    bounds = [f" {word} {schema[key]:.12g}" for key, word in _BOUNDS.items() if key in schema]
    items = f" of {allowed(schema['items'])}" if "items" in schema else ""
    return "".join((schema.get("format", schema["type"]), items, *bounds))


def reference() -> str:
    """A settings file that sets the defaults, with descriptions and ranges as comments."""
    lines = ["# Every field with its default. A default behind `#` follows from something else."]
    for place, schema in list(fields().items())[1:]:
        indent, is_section = "  " * (len(place) - 1), "properties" in schema
        about = schema["description"] + ("" if is_section else f" Allowed: {allowed(schema)}.")
        lines += ["", *(f"{indent}# {line}" for line in textwrap.wrap(about, 96 - len(indent)))]
        lines.append(indent + (f"{place[-1]}:" if is_section else _default(place, schema)))
    return "\n".join(lines) + "\n"


def _default(place: Place, schema: dict[str, Any]) -> str:
    """The line that sets a field to its default."""
    value = schema.get("default", ...)
    if value is ...:
        value = functools.reduce(getattr, place, Settings.model_construct())
    text = yaml.safe_dump([value], default_flow_style=True, width=math.inf).strip()[1:-1]
    ours = text.replace(f"{REPOSITORY_ROOT}/", "")  # beside the code, not beside the file
    return f"{'# ' if 'default' not in schema or ours != text else ''}{place[-1]}: {ours}"

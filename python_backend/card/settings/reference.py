"""Every field as a settings file that says the defaults, with ranges and meanings as comments."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml

from card.settings.schema import Node, explained
from card.settings.whole import ENVIRONMENT_PREFIX, Settings

_INDENTATION = "  "
_WIDTH = 94


def reference() -> str:
    """The text of that file."""
    example = f"{ENVIRONMENT_PREFIX}CACHE__SLOTS=4"
    return "\n".join(
        (
            f"# Every field with its default. An environment variable wins ({example}).",
            "# A default behind `#` follows from other fields.",
            *_section(explained()),
            "",
        )
    )


def _section(section: Node) -> Iterator[str]:
    indentation = _INDENTATION * len(section.place)
    for number, field in enumerate(section.fields):
        if number or not section.place:
            yield ""
        yield from (f"{indentation}# {line}" for line in _comments(field))
        if field.is_section:
            yield f"{indentation}{field.name}:"
            yield from _section(field)
        else:
            yield indentation + _default(field)


def _comments(field: Node) -> Iterator[str]:
    yield from field.meaning.splitlines()
    if not field.is_section:
        yield from textwrap.wrap(f"It must be {field.allowed}.", _WIDTH)


def _default(field: Node) -> str:
    if "default" in field.schema:
        return f"{field.name}: {_written(field.schema['default'])}"
    value: Any = Settings.model_construct()
    for part in field.place:
        value = getattr(value, str(part))
    return f"# {field.name}: {_written(value)}"


def _written(value: object) -> str:
    """As a value in YAML, on one line."""
    return yaml.safe_dump([value], default_flow_style=True, width=math.inf).strip()[1:-1]

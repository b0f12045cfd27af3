"""What is wrong with settings, in words: where it was said, the field, its value, what is allowed.

Pydantic's own words are for programmers; what a field takes is told from its schema instead.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from card.settings.schema import Node, Place, whole
from card.settings.section import OfWrongKindError
from card.settings.variables import variable_of

_LONGEST_VALUE = 80
_UNKNOWN = ("extra_forbidden", "invalid_key")
_FOLLOWS = "default_factory_not_called"
"""Of a field that has no value because another, which is named itself, is wrong."""


def explain(error: ValidationError, file: Path | None) -> str:
    """Every wrong field in one line, those of one source behind its name."""
    told: dict[str, dict[Place, str]] = {}
    for problem in error.errors():
        if problem["type"] == _FOLLOWS:
            continue
        place, text = _told(problem)
        # Where a field takes values of several kinds, each that was tried is a problem of its own.
        told.setdefault(_source(problem, place, file), {}).setdefault(place, text)
    return "; ".join(f"{source}: {'; '.join(lines.values())}" for source, lines in told.items())


def _told(problem: Mapping[str, Any]) -> tuple[Place, str]:
    """The place of the problem, as the user wrote it, and what is to be said of it."""
    node = whole().deepest(problem["loc"])
    place, value = node.place, problem.get("input")
    if problem["type"] in _UNKNOWN:
        place = (*place, problem["loc"][len(place)])
        names = ", ".join(field.name for field in node.fields)
        text = f"no such field; allowed: {names}{got(value)}"
    elif own := _own_words(problem):
        text = own + (_variables_behind(node, own) if node.is_section else got(value))
    else:
        text = f"it must be {node.allowed}{got(value)}"
    return place, ": ".join([".".join(map(str, place)), text] if place else [text])


def _own_words(problem: Mapping[str, Any]) -> str:
    """What a validator of ours said; empty where what the field takes says more."""
    if problem["type"] != "value_error" or isinstance(problem["ctx"]["error"], OfWrongKindError):
        return ""
    return str(problem["ctx"]["error"])


def _source(problem: Mapping[str, Any], place: Place, file: Path | None) -> str:
    """Where the value was said. What fields say together has no single source but the file."""
    together = _own_words(problem) and whole().deepest(place).is_section
    return said_in(() if together else place, file)


def said_in(place: Place, file: Path | None) -> str:
    """Where the value of a field was said: in an environment variable or in the file."""
    if variable := variable_of(place):
        return f"environment variable {variable}"
    return f"settings file {file}" if file is not None else "settings"


def _variables_behind(section: Node, text: str) -> str:
    """Which fields that `text` names were set by environment variables."""
    depth = len(section.place)
    variables = {
        variable_of(field.place): None
        for field in section.leaves()
        if re.search(rf"\b{re.escape('.'.join(map(str, field.place[depth:])))}\b", text)
    }
    named = [variable for variable in variables if variable is not None]
    return f" (set by environment variables: {', '.join(named)})" if named else ""


def got(value: object) -> str:
    """The value that was said, for the end of a line; a long one is cut."""
    text = shown(value)
    if len(text) > _LONGEST_VALUE:
        text = f"{text[: _LONGEST_VALUE - 3]}..."
    return f" (got {text})"


def shown(value: object) -> str:
    """As it stands in the file, or nearly so."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.date):
        return str(value)
    try:
        return repr(value)
    except ValueError:
        return "a number of thousands of digits"

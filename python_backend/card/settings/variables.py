"""Environment variables that win over the settings file, and which of them set a value."""

from __future__ import annotations

import json
import os

from card.settings.renamed import present_place
from card.settings.schema import Place, whole
from card.settings.whole import ENVIRONMENT_PREFIX, Settings, section_of


def wrong_variable() -> str | None:
    """What is wrong with a variable whose value cannot be told from its text, in one line."""
    for name, text in os.environ.items():
        section = section_of(name)
        if section is None:
            continue
        if section in Settings.model_fields:
            if problem := _unusable(name, text):
                return problem
        elif "__" in name:  # others may well be somebody else's
            sections = ", ".join(field.upper() for field in Settings.model_fields)
            return (
                f"environment variable {name}: there is no section {section.upper()}; "
                f"allowed behind {ENVIRONMENT_PREFIX}: {sections}"
            )
    return None


def variable_of(place: Place) -> str | None:
    """The variable that set what stands there: its own or one further inside, else a section's."""
    if not place:
        return None
    given = {_place_of(name): name for name in os.environ if section_of(name) is not None}
    wanted = tuple(str(part).lower() for part in place)
    for known, name in given.items():
        if known[: len(wanted)] == wanted:
            return name
    for length in range(len(place) - 1, 0, -1):
        section = given.get(wanted[:length])
        if section is not None and _holds(os.environ[section], place[length:]):
            return section
    return None


def _place_of(variable: str) -> tuple[str, ...]:
    """Of the field that it sets, by whichever of its names."""
    said = variable.upper().removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
    return present_place(tuple(said))


def _unusable(name: str, text: str) -> str | None:
    """Of one that names a field of what has none, which would be taken for nothing, or whose value
    is to be JSON and is not."""
    place = _place_of(name)
    node = whole().deepest(place)
    if node.place != place:
        if node.is_section:  # an unknown field, which pydantic refuses
            return None
        field = ".".join(map(str, node.place))
        own = ENVIRONMENT_PREFIX + "__".join(str(part).upper() for part in node.place)
        return f"environment variable {name}: {field} has no fields; set {own} to {node.allowed}"
    if not node.is_json_in_a_variable:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = f"; it is no JSON: {error}"
    else:
        # What further variables say of a section's fields finds room in a mapping alone.
        if isinstance(value, dict) or not node.is_section:
            return None
        reason = ""
    return (
        f"environment variable {name}: {'.'.join(place)}: it must be {node.allowed}, "
        f"written as JSON (got {text!r}{reason})"
    )


def _holds(text: str, place: Place) -> bool:
    """Whether this JSON says what stands at `place` inside it."""
    try:
        value = json.loads(text)
        for part in place:
            value = value[part]
    except (ValueError, RecursionError, LookupError, TypeError):
        return False
    return True

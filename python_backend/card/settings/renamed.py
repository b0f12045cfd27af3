"""Names that fields had in the release before, and that files and variables may still say."""

from __future__ import annotations

from typing import Any

RENAMED: dict[tuple[str, ...], str] = {
    ("serving", "findings"): "calibration_cache",
    ("speculation", "gamma"): "num_draft_tokens",
    ("speculation", "lookahead"): "ngram_tokens",
}
"""The present name of a field by its section and the name that it had."""


def present_place(place: tuple[str, ...]) -> tuple[str, ...]:
    """Where now stands what once stood at `place`."""
    present = RENAMED.get(place[:2])
    return place if present is None else (place[0], present, *place[2:])


def with_present_names(given: dict[str, Any]) -> dict[str, Any]:
    """What a file and the variables say of all sections, by the names of today.

    Raises:
        ValueError: a field is said by both of its names.
    """
    said = dict(given)
    for (section, former), present in RENAMED.items():
        fields = said.get(section)
        if not isinstance(fields, dict) or former not in fields:
            continue
        if present in fields:
            raise ValueError(
                f"{section}.{former} is now called {section}.{present}: say the latter alone"
            )
        others = {name: value for name, value in fields.items() if name != former}
        said[section] = others | {present: fields[former]}
    return said

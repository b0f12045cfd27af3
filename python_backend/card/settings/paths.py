"""Paths of the settings: taken from the folder of their file, and refused if they lead nowhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from card.settings.refusals import got, said_in
from card.settings.section import Section
from card.settings.whole import Settings

PATHS = (
    ("target", "path"),
    ("draft", "path"),
    ("cache", "directory"),
    ("serving", "findings"),
    ("serving", "tritonserver"),
)
"""Every field that is a path."""
_DIRECTORIES_TO_BE = (("serving", "findings"),)
"""Those that may lead to a directory, or to nothing yet."""

_Section = TypeVar("_Section", bound=Section)


def anchored(settings: Settings, base: Path) -> Settings:
    """With every path taken from `base`, unless it is absolute."""
    sections = {name: getattr(settings, name) for name in Settings.model_fields}
    for name, field in PATHS:
        sections[name] = _with_path_from(base, sections[name], field)
    return Settings.model_construct(**sections)


def wrong_paths(settings: Settings, file: Path | None) -> str:
    """Which of the paths, anchored ones, cannot be used; empty if all can.

    Only what no use of a path could do with is wrong here: what must be there, and of which kind,
    says whoever needs it.
    """
    problems = []
    for place in PATHS:
        path = getattr(getattr(settings, place[0]), place[1])
        if path is not None and (problem := _problem(path, to_be=place in _DIRECTORIES_TO_BE)):
            problems.append(f"{said_in(place, file)}: {'.'.join(place)}: {problem}{got(str(path))}")
    return "; ".join(problems)


def _with_path_from(base: Path, section: _Section, field: str) -> _Section:
    path = getattr(section, field)
    if path is None:
        return section
    # Not `Path.resolve`, which raises where links lead in circles.
    return section.model_copy(update={field: Path(os.path.realpath(base / path))})


def _problem(path: Path, *, to_be: bool) -> str:
    try:
        path.stat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"it leads nowhere: {error.strerror}"
    if to_be and not path.is_dir():
        return "it must be a directory, or nothing yet"
    return ""

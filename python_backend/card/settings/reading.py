"""Reads settings from a YAML file and the environment. An error names every wrong field."""

from __future__ import annotations

import difflib
import os
import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from card.settings.draft_files import with_draft_files
from card.settings.models import REPOSITORY_ROOT
from card.settings.paths import anchored, fitted
from card.settings.reference import Place, allowed, fields, variable_of
from card.settings.whole import ENVIRONMENT_PREFIX, Settings
from model_files.json_file import is_irregular

SETTINGS_VARIABLE = "CARD_SETTINGS"
"""Environment variable that names the settings file; every Triton model process reads it."""


class SettingsError(ValueError):
    """The settings are unusable; the message names the field, the value and what is allowed."""


def load_settings(file: Path | None = None, **overrides: Any) -> Settings:
    """Read the settings from `file` (or ``$CARD_SETTINGS``, or defaults alone) and the environment.

    `overrides` stand for whole sections of the file; environment variables win over both. Relative
    paths start at the file's folder, or without a file at the repository.

    Raises `SettingsError` naming every wrong field.
    """
    if file is None and (named := os.environ.get(SETTINGS_VARIABLE)):
        file = Path(named)
    file = file and Path(os.path.realpath(file))  # `Path.resolve` raises on a circle of links
    overriding = {name.upper(): name for name in os.environ if _overrides(name)}
    source = f"settings file {file}" if file else "settings"
    source += f" with {', '.join(overriding.values())}" if overriding else ""
    content = (_content(file) if file else {}) | overrides
    known = [variable_of(place) for place in fields()] if overriding else []
    for name in set(overriding) - set(known):
        raise SettingsError(f"environment variable {name} sets no field{_nearest(name, known)}")
    try:
        said = Settings(**content)
        here = anchored(said, file.parent if file else REPOSITORY_ROOT)
        return with_draft_files(fitted(here))
    except ValidationError as error:
        raise SettingsError(f"{source}: {_explained(error)}") from error
    except (ValueError, RecursionError) as error:
        text = getattr(error.__cause__, "doc", None)  # of a variable that must be JSON
        names = [name for name in overriding.values() if os.environ[name] == text]
        problem = f"{', '.join(names)} must be JSON{_got(text)}" if names else str(error)
        raise SettingsError(f"{source}: {problem}") from error


def _overrides(variable: str) -> bool:
    """Whether the environment variable is meant to set a field or a section."""
    name, _, field = variable.upper().partition("__")
    ours = name.removeprefix(ENVIRONMENT_PREFIX).lower()
    return name.startswith(ENVIRONMENT_PREFIX) and (field != "" or ours in Settings.model_fields)


def _explained(error: ValidationError) -> str:
    """Every wrong field in one line: its name, what is allowed and its value."""
    lines: dict[Place, str] = {}
    for problem in error.errors(include_url=False):
        if problem["type"] == "default_factory_not_called":
            continue  # the default follows from another field, which has its own problem
        loc = place = tuple(map(str, problem["loc"]))
        while place not in fields():  # it ends in an unknown field, an entry or a type's name
            place = place[:-1]
        schema, text = fields()[place], problem["msg"].removeprefix("Value error, ")
        if problem["type"] in ("extra_forbidden", "invalid_key"):
            names, place = schema["properties"], loc
            text = f"no such field{_nearest(loc[-1], names)}; allowed: {', '.join(names)}"
        elif problem["type"] not in ("value_error", "literal_error", "string_pattern_mismatch"):
            text = f"{text}; allowed: {allowed(schema)}"
        together = problem["type"] == "value_error" and "properties" in schema
        text = text if together else text + _got(problem["input"])
        lines.setdefault(place, ": ".join(filter(None, (".".join(place), text))))
    return "; ".join(lines.values())


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _got(value: object) -> str:
    """The value, for the end of a line; a long one is cut."""
    try:
        text = repr(value) if isinstance(value, str) else reprlib.repr(value)
    except ValueError:
        text = "a number of thousands of digits"
    return f" (got {text if len(text) <= 80 else text[:77] + '...'})"


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses a key that stands twice, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                problem = f"{key.value!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)


def _content(file: Path) -> dict[str, Any]:
    """The sections that the file sets."""
    if is_irregular(file):
        raise SettingsError(f"settings file {file} is no regular file")
    try:
        content = _Loader(file.read_text(encoding="utf-8")).get_single_data()
    except FileNotFoundError:
        raise SettingsError(f"settings file {file} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {file} cannot be read: {error}") from error
    # PyYAML raises other errors than its own on numbers of thousands of digits, impossible dates,
    # deep nesting, and values that do not fit their tag (`!!timestamp x`).
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError, LookupError) as error:
        problem = " ".join(str(error).split())
        raise SettingsError(f"settings file {file} is not valid YAML: {problem}") from error
    content = {} if content is None else content
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        sections = ", ".join(Settings.model_fields)
        raise SettingsError(f"settings file {file} must hold a mapping of sections ({sections})")
    return content


def freeze(settings: Settings, file: Path) -> None:
    """Write them to `file`, complete and with every path absolute."""
    file.write_text(yaml.safe_dump(settings.model_dump(mode="json")), encoding="utf-8")


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that would win over a settings file."""
    return {name: value for name, value in environment.items() if not _overrides(name)}

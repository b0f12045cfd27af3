"""From a YAML file and the environment to settings, or to an error that names every wrong field."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_settings import SettingsConfigDict
from pydantic_settings import SettingsError as SourceError

from card.settings.fitting import with_fitting_limits
from card.settings.models import REPOSITORY_ROOT
from card.settings.paths import anchored, wrong_paths
from card.settings.refusals import explain, shown
from card.settings.variables import wrong_variable
from card.settings.whole import Settings, section_of
from model_files.json_file import is_irregular

SETTINGS_VARIABLE = "CARD_SETTINGS"
"""Environment variable naming the settings file; every Triton model process reads it."""


class SettingsError(ValueError):
    """The settings are unusable; the message says which field, which value and what is allowed."""


def load_settings(file: Path | None = None, **overrides: Any) -> Settings:
    """Read the settings from `file` (or ``$CARD_SETTINGS``, or defaults alone) and the environment.

    Relative paths are taken from the file's folder; without a file, from the repository. A context
    that nobody names is what the models were built for where that is less than the default.
    `overrides` are top-level sections that win over both (used by tests and the benchmark).

    Raises `SettingsError` naming every wrong field.
    """
    if file is None and (named := os.environ.get(SETTINGS_VARIABLE)):
        file = Path(named)
    if file is not None:
        file = Path(os.path.realpath(file))  # `Path.resolve` raises where links lead in circles
        _check_fields(file)
    if problem := wrong_variable():
        raise SettingsError(problem)

    class FromFile(Settings):
        model_config = SettingsConfigDict(yaml_file=file, yaml_file_encoding="utf-8")

    # $CARD_SETTINGS itself carries the prefix of the environment overrides; it is no field.
    try:
        said = FromFile(**overrides)
    except ValidationError as error:
        raise SettingsError(explain(error, file)) from error
    except SourceError as error:
        raise SettingsError(f"settings: {error}: {error.__cause__}") from error
    base = file.parent if file is not None else REPOSITORY_ROOT
    settings = anchored(said, base)
    if problem := wrong_paths(settings, file):
        raise SettingsError(problem)
    try:
        return with_fitting_limits(settings)
    except ValueError as error:
        raise SettingsError(f"{file or 'settings'}: {error}") from error


def _check_fields(file: Path) -> None:
    if is_irregular(file):
        raise SettingsError(f"settings file {file} is no regular file")
    try:
        text = file.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except FileNotFoundError:
        raise SettingsError(f"settings file {file} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {file} cannot be read: {error}") from error
    # Numbers of thousands of digits, impossible dates and bottomless nesting are no YAMLError, nor
    # is what PyYAML stumbles over where a value does not fit its tag (`!!timestamp x`).
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError, LookupError) as error:
        raise SettingsError(f"settings file {file} is not valid YAML: {_problem(error)}") from error
    if twice := _said_twice(yaml.compose(text, yaml.SafeLoader)):
        raise SettingsError(f"settings file {file}: {twice}")
    sections = ", ".join(Settings.model_fields)
    if content is not None and not isinstance(content, dict):
        raise SettingsError(
            f"settings file {file} must hold a mapping of sections ({sections}), "
            f"not {type(content).__name__}"
        )
    for name in content or ():
        if name not in Settings.model_fields:
            raise SettingsError(
                f"settings file {file}: {shown(name)} is no field; allowed: {sections}"
            )


def _said_twice(root: yaml.Node | None) -> str | None:
    """Which key a mapping of the file has twice, of which YAML takes the last; None: none has."""
    left, known = [root], {id(root)}
    while left:
        node = left.pop()
        if not isinstance(node, yaml.MappingNode):
            continue
        lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = key.value, key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode):
                if name in lines:
                    return f"{shown(name)} stands in lines {lines[name]} and {line}; say it once"
                lines[name] = line
            if id(value) not in known:  # an alias may lead to what was looked at, or back to itself
                known.add(id(value))
                left.append(value)
    return None


def _problem(error: Exception) -> str:
    """What a reader of YAML says is wrong, in one line that begins with the place."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    # Python's words are for programmers.
    if "int_max_str_digits" in str(error):
        return "it has a number of thousands of digits"
    if isinstance(error, AttributeError | LookupError):
        return "a value does not fit the tag before it (!!timestamp, !!bool, !!int, !!float)"
    return " ".join(str(error).split())


def freeze(settings: Settings, file: Path) -> None:
    """Write them to `file`, complete and with every path absolute."""
    file.write_text(yaml.safe_dump(settings.model_dump(mode="json")), encoding="utf-8")


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What is left of an environment without the variables that would win over such a file."""
    return {
        name: value
        for name, value in environment.items()
        if section_of(name) not in Settings.model_fields
    }

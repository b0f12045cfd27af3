"""Reads what the planner goes by from YAML files."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from planning.errors import PlanError

_Kind = TypeVar("_Kind", bound=BaseModel)


def read_yaml(path: Path, kind: type[_Kind]) -> _Kind:
    """Raises `PlanError` saying what is wrong with the file."""
    try:
        return kind.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PlanError(f"{path} cannot be read: {error}") from error
    except ValidationError as error:
        (problem, *_) = error.errors()
        field = ".".join(map(str, problem["loc"])) or "the file"
        raise PlanError(f"{path}: {field}: {problem['msg']}") from error

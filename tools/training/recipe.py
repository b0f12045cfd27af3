"""The numbers of a training, with the fields that a JSON file overrides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from training.errors import TrainingError


class Frozen(BaseModel):
    """The base of every recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Recipe = TypeVar("Recipe", bound=BaseModel)


def recipe_of(kind: type[Recipe], path: Path | None) -> Recipe:
    """The recipe with the fields of the JSON file at `path`. Raises `TrainingError`."""
    try:
        fields: dict[str, Any] = {} if path is None else json.loads(path.read_text())
        return kind(**fields)
    except json.JSONDecodeError as error:
        raise TrainingError(f"{path} is not JSON: {error}") from error
    except ValidationError as error:
        faults = "; ".join(f"{fault['loc'][0]}: {fault['msg']}" for fault in error.errors())
        raise TrainingError(f"{path}: {faults}") from error

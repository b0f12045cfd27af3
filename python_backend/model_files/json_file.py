"""Reading a JSON file that may come from a stranger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model_files.errors import ModelFilesError
from model_files.regular_file import is_irregular


class JsonFileError(ModelFilesError):
    """There is no such object to be read; the message names the file and says why."""


def read_json_object(file: Path) -> dict[str, Any]:
    """The object that the file holds. Raises `JsonFileError`."""
    if is_irregular(file):
        raise JsonFileError(f"{file} is no regular file")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise JsonFileError(f"{file} does not exist") from None
    # Bytes that are no UTF-8, and numbers of thousands of digits, are a ValueError like bad JSON.
    except (OSError, ValueError, RecursionError) as error:
        raise JsonFileError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise JsonFileError(f"{file} must hold a JSON object")
    return content
